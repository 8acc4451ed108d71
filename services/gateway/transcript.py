"""What one request has shown so far: it only grows, and any number of clients read it, each from its own position."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from common.committed import TextSink
from common.errors import WireError
from common.metrics.catalogue import CARRIED_DIVERGENCE
from sangam.v1 import inference_pb2

Responses = AsyncGenerator[inference_pb2.GenerateResponse, None]

_OVERHEAD_BYTES = 4096
"""What an empty transcript and its place in a table take, generously."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one client wants to see: committed tokens from `from_position` (generated-relative) on, and whether
    provisional ones too. `carried_token_ids` are the ids of those before it, if the client brought them along.
    `detach_grace_s` is how long the request may outlive the client's call, in seconds.
    """

    from_position: int
    carried_token_ids: Sequence[int] = ()
    include_revealed: bool
    detach_grace_s: float


@dataclass(frozen=True, slots=True)
class _Mark:
    """The end of one committed run: so many tokens, and the characters that they completed."""

    tokens: int
    characters: int


class Transcript:
    """One writer, any number of readers. Ends with `finished` or with an error, once."""

    def __init__(self, new_text: Callable[[], TextSink]) -> None:
        """`new_text` makes a fresh decoder of the request's tokens: it tells where a run may be cut."""
        self._new_text = new_text
        self._accepted: inference_pb2.Accepted | None = None
        self._token_ids = array("I")
        self._text = ""
        self._entries: list[_Mark | inference_pb2.Revealed | inference_pb2.Waiting] = []
        self._outcome: inference_pb2.Finished | WireError | None = None
        self._grown = asyncio.Event()
        self.wants_revealed = False
        """Whether any reader has asked for provisional tokens; without one none are kept."""

    @property
    def ended(self) -> bool:
        """Whether it has its last entry."""
        return self._outcome is not None

    @property
    def finished_well(self) -> bool:
        """Whether that is `finished`, not an error."""
        return isinstance(self._outcome, inference_pb2.Finished)

    @property
    def size_bytes(self) -> int:
        """Memory it takes, about; never less than a few KiB."""
        finished = self._outcome.ByteSize() if isinstance(self._outcome, inference_pb2.Finished) else 0
        # A str takes up to 4 bytes a character.
        return _OVERHEAD_BYTES + 4 * len(self._token_ids) + 4 * len(self._text) + 4 * finished

    def add(self, response: inference_pb2.GenerateResponse) -> None:
        """The next thing that happened. `accepted` comes first, `finished` last."""
        assert self._outcome is None, "a transcript that has ended does not grow"
        match response.WhichOneof("event"):
            case "accepted":
                self._accepted = response.accepted
            case "committed":
                self._commit(response.committed)
            case "revealed":
                self._entries.append(response.revealed)
            case "waiting":
                self._entries.append(response.waiting)
            case "finished":
                self._outcome = response.finished
        self._wake_readers()

    def fail(self, error: WireError) -> None:
        """The request ended badly: every reader gets `error` after what was shown."""
        assert self._outcome is None, "a transcript ends once"
        self._outcome = error
        self._wake_readers()

    def compacted(self) -> Transcript:
        """A finished request's transcript as it is kept: the same tokens and text in one run, nothing provisional."""
        assert self.finished_well, "only what finished well is kept"
        kept = Transcript(self._new_text)
        kept._accepted, kept._token_ids, kept._text = self._accepted, self._token_ids, self._text
        kept._outcome = self._outcome
        if kept._token_ids:
            kept._entries.append(_Mark(len(kept._token_ids), len(kept._text)))
        return kept

    async def read(self, view: View) -> Responses:
        """Everything from the view's position on, up to `finished`. Raises the `WireError` of a request that failed."""
        self.wants_revealed |= view.include_revealed
        accepted_shown = False
        index, shown = 0, _Mark(0, 0)
        while True:
            grown = self._grown
            if self._accepted is not None and not accepted_shown:
                accepted_shown = True
                yield _accepted_response(self._accepted, view)
            while index < len(self._entries):
                entry = self._entries[index]
                index += 1
                if isinstance(entry, inference_pb2.Waiting):
                    # Something came after it: it waits no more.
                    if index == len(self._entries):
                        yield inference_pb2.GenerateResponse(waiting=entry)
                    continue
                if isinstance(entry, inference_pb2.Revealed):
                    if view.include_revealed and (kept := _ahead_of(max(shown.tokens, view.from_position), entry)):
                        yield inference_pb2.GenerateResponse(revealed=kept)
                    continue
                self._compare(view.carried_token_ids, shown.tokens, entry.tokens)
                if entry.tokens > view.from_position:
                    yield self._committed_response(self._cut(shown, view.from_position), entry)
                shown = entry
            if isinstance(self._outcome, WireError):
                raise self._outcome
            if self._outcome is not None:
                yield inference_pb2.GenerateResponse(finished=self._outcome)
                return
            await grown.wait()

    def _compare(self, carried: Sequence[int], start: int, stop: int) -> None:
        """Count the tokens at `start` to `stop` that a client has otherwise; it keeps its own."""
        pairs = zip(self._token_ids[start:stop], carried[start:stop], strict=False)
        CARRIED_DIVERGENCE.add(sum(here != there for here, there in pairs))

    def _commit(self, committed: inference_pb2.Committed) -> None:
        assert committed.from_position == len(self._token_ids), "committed runs follow each other"
        self._token_ids.extend(committed.token_ids)
        self._text += committed.text
        self._entries.append(_Mark(len(self._token_ids), len(self._text)))

    def _cut(self, shown: _Mark, from_position: int) -> _Mark:
        """`shown`, or the place of `from_position` in the run behind it."""
        if from_position <= shown.tokens:
            return shown
        return _Mark(from_position, len(self._new_text().feed(list(self._token_ids[:from_position]))))

    def _committed_response(self, start: _Mark, end: _Mark) -> inference_pb2.GenerateResponse:
        committed = inference_pb2.Committed(
            from_position=start.tokens,
            token_ids=self._token_ids[start.tokens : end.tokens],
            text=self._text[start.characters : end.characters],
        )
        return inference_pb2.GenerateResponse(committed=committed)

    def _wake_readers(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


def _accepted_response(accepted: inference_pb2.Accepted, view: View) -> inference_pb2.GenerateResponse:
    response = inference_pb2.GenerateResponse(accepted=accepted)
    response.accepted.detach_grace_ms = round(view.detach_grace_s * 1000)
    return response


def _ahead_of(position: int, revealed: inference_pb2.Revealed) -> inference_pb2.Revealed | None:
    """The part of `revealed` that lies at or behind `position`, None when there is none."""
    kept = [index for index, shown in enumerate(revealed.positions) if shown >= position]
    if not kept:
        return None
    return inference_pb2.Revealed(
        positions=[revealed.positions[index] for index in kept],
        token_ids=[revealed.token_ids[index] for index in kept],
        confidences=[revealed.confidences[index] for index in kept],
    )
