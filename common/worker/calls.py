"""The live Prefill and Decode calls: one outbox each, found by attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from common.core.defaults import DEFAULT_QUICK_STEPS_WAIT_S, DEFAULT_STREAM_INTERVAL_S
from common.core.ids import BlockAttempt
from common.core.work import BlockWork
from common.errors import Reason, WireError
from sangam.v1 import decode_pb2, prefill_pb2

Answer = prefill_pb2.PrefillResponse | decode_pb2.DecodeEvent
"""What a call says to its caller: once for Prefill, event by event for Decode."""


class CallOutbox:
    """What one call still has to say to its caller, in batches that share a message. Event loop only.

    The first answer leaves at once, and so does the end with all before it. Between them a batch leaves at most every
    `DEFAULT_STREAM_INTERVAL_S`, and only when the one before has been written: a message costs every hop far more than
    a delta does. Unbounded, yet never longer than a block: every entry is a delta, and a block has at most as many
    steps as positions.
    """

    def __init__(self, work: BlockWork) -> None:
        self.work = work
        self.ended = False
        self._handed_back = False
        self._error: WireError | None = None
        self._pending: list[Answer] = []
        self._due = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None

    def send(self, answer: Answer, *, can_wait: bool = False) -> None:
        """Queue one answer for the caller. One that `can_wait` goes with the next that cannot, or soon after."""
        assert self._handed_back or not self.ended, f"{self.work.attempt}: answer after the end"
        if self.ended:
            return
        self._pending.append(answer)
        if can_wait:
            if self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(DEFAULT_QUICK_STEPS_WAIT_S, self._patience_over)
        elif self._pause is None:
            self._due.set()

    def finish(self) -> None:
        """End the call well, after what is queued."""
        self._end(None)

    def fail(self, error: WireError) -> None:
        """End the call with `error`, after what is queued. A call that has ended stays as it is."""
        if not self.ended:
            self._end(error)

    def hand_back(self, error: WireError) -> None:
        """End the call with `error`, whatever the core is still going to say of it."""
        self.fail(error)
        self._handed_back = True

    def _end(self, error: WireError | None) -> None:
        if self._handed_back:
            return
        assert not self.ended, f"{self.work.attempt}: ended twice"
        self.ended, self._error = True, error
        self._due.set()

    async def batches(self) -> AsyncGenerator[Sequence[Answer], None]:
        """Yield what is due, never nothing, until the end; raises the call's `WireError` if it ended badly."""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                self._end_patience()
                batch, self._pending = self._pending, []
                ended = self.ended
                if batch:
                    if not ended:
                        self._begin_pause()
                    yield batch
                if ended:
                    break
        finally:
            self._end_pause()
            self._end_patience()
        if self._error is not None:
            raise self._error

    def _patience_over(self) -> None:
        self._patience = None
        self._due.set()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _begin_pause(self) -> None:
        self._end_pause()
        self._pause = asyncio.get_running_loop().call_later(DEFAULT_STREAM_INTERVAL_S, self._pause_over)

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _pause_over(self) -> None:
        self._pause = None
        if self._pending:
            self._due.set()


class CallTable:
    """Outboxes of the live calls, by attempt. Event loop only."""

    def __init__(self) -> None:
        self._calls: dict[BlockAttempt, CallOutbox] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def attempts(self) -> frozenset[BlockAttempt]:
        """Attempts with a live call."""
        return frozenset(self._calls)

    @property
    def unanswered(self) -> frozenset[BlockAttempt]:
        """Attempts whose call has not been told its end."""
        return frozenset(attempt for attempt, outbox in self._calls.items() if not outbox.ended)

    def find(self, attempt: BlockAttempt) -> CallOutbox | None:
        """The outbox of that attempt, or None when its caller is gone."""
        return self._calls.get(attempt)

    @contextmanager
    def open(self, work: BlockWork) -> Iterator[CallOutbox]:
        """Hold an outbox for one call. Raises `WireError` STALE_ATTEMPT when the attempt has a live call already."""
        if work.attempt in self._calls:
            raise WireError(Reason.STALE_ATTEMPT, f"{work.attempt} has a live call on this worker")
        outbox = self._calls[work.attempt] = CallOutbox(work)
        self._empty.clear()
        try:
            yield outbox
        finally:
            del self._calls[work.attempt]
            if not self._calls:
                self._empty.set()

    def fail_all(self, reason: Reason, message: str) -> None:
        """Hand every live call back with that reason."""
        for outbox in self._calls.values():
            outbox.hand_back(WireError(reason, message))

    async def wait_empty(self) -> None:
        """Return when no call is live."""
        await self._empty.wait()
