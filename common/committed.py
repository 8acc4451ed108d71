"""Out-of-order reveals of one request, turned into committed runs: text that only ever grows.

Steps reveal positions in any order; what a reader may keep is the gapless run from position 0, cut at `max_tokens` and
after the first end-of-text token that has everything before it. Pure; shared by the gateway and `generate --local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.core.work import FinishReason, RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive tokens that just joined the committed text; `from_position` is generated-relative."""

    from_position: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """What one step changed: `run` is the new committed run (None when a gap remains before it).

    `provisional` are the (index into the step, position) pairs that were new and are still behind a gap.
    """

    run: Run | None
    provisional: tuple[tuple[int, int], ...]


class CommittedTokens:
    """All tokens seen of one request. The first token seen at a position stays; `divergences` counts other repeats."""

    def __init__(self, *, max_tokens: int, eos_token_id: int | None) -> None:
        """`max_tokens` is where the output is cut; `eos_token_id` None means: go on past end of text."""
        assert max_tokens > 0
        self._eos_token_id = eos_token_id
        self._end = max_tokens
        self._tokens: dict[int, int] = {}
        self._committed: list[int] = []
        self._finish: FinishReason | None = None
        self.divergences = 0

    @classmethod
    def of(cls, spec: RequestSpec, *, eos_token_id: int) -> CommittedTokens:
        """Those of a fresh run of `spec`; the model's `eos_token_id` counts unless the request ignores it."""
        return cls(max_tokens=spec.max_tokens, eos_token_id=None if spec.ignore_eos else eos_token_id)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The committed tokens from position 0 (the last one may be the end-of-text token)."""
        return tuple(self._committed)

    @property
    def count_tokens(self) -> int:
        """How many tokens are committed."""
        return len(self._committed)

    @property
    def finish(self) -> FinishReason | None:
        """Why nothing more can be committed; None while something can."""
        return self._finish

    def reveal(self, positions: Sequence[int], token_ids: Sequence[int]) -> Reveal:
        """Take one step's delta (parallel sequences); positions behind the cut or already seen do nothing."""
        fresh = []
        for index, (position, token) in enumerate(zip(positions, token_ids, strict=True)):
            self.divergences += self._tokens.get(position, token) != token
            if position >= self._end or position in self._tokens or self._finish is not None:
                continue
            self._tokens[position] = token
            fresh.append((index, position))
            if token == self._eos_token_id:
                self._end = position + 1
        run = self._advance()
        reached = len(self._committed)
        behind_gap = () if self._finish else tuple(pair for pair in fresh if reached <= pair[1] < self._end)
        return Reveal(run=run, provisional=behind_gap)

    def whole_blocks(self, block_length_tokens: int) -> tuple[int, ...]:
        """The committed tokens of whole blocks: what a resumed request need not compute again."""
        return tuple(self._committed[: len(self._committed) // block_length_tokens * block_length_tokens])

    def shown_in_block(self, block: int, block_length_tokens: int) -> tuple[tuple[int, int], ...]:
        """Every (position, token) seen in `block`, ascending: a resumed block must not show them differently."""
        span = range(block * block_length_tokens, (block + 1) * block_length_tokens)
        return tuple((position, self._tokens[position]) for position in span if position in self._tokens)

    def _advance(self) -> Run | None:
        start = len(self._committed)
        while len(self._committed) < self._end and len(self._committed) in self._tokens:
            self._committed.append(self._tokens[len(self._committed)])
        if len(self._committed) == start:
            return None
        if len(self._committed) == self._end:
            ended = self._committed[-1] == self._eos_token_id
            self._finish = FinishReason.STOP if ended else FinishReason.LENGTH
        return Run(from_position=start, token_ids=tuple(self._committed[start:]))


class TextSink(Protocol):
    """Incremental detokenizer: `feed` returns the characters now complete, `finish` what was held back."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Append tokens; return the text they complete, whole characters only."""
        ...

    def finish(self) -> str:
        """No more tokens come: return the held-back rest."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedText:
    """A committed run and the characters it completes."""

    run: Run
    text: str


class CommittedStream:
    """`CommittedTokens` plus text: every run carries the characters it completes, the last one the held-back rest."""

    def __init__(self, *, tokens: CommittedTokens, text: TextSink) -> None:
        self.tokens = tokens
        self._text = text

    def reveal(self, positions: Sequence[int], token_ids: Sequence[int]) -> tuple[CommittedText | None, Reveal]:
        """Take one step's delta; return the committed run with its text (None without one) and the raw reveal."""
        reveal = self.tokens.reveal(positions, token_ids)
        if reveal.run is None:
            return None, reveal
        text = self._text.feed(reveal.run.token_ids)
        if self.tokens.finish is not None:
            text += self._text.finish()
        return CommittedText(run=reveal.run, text=text), reveal
