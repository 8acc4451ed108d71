"""The live Prefill and Decode calls: one outbox each, found by attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.work import BlockWork
from common.errors import Reason, WireError
from sangam.v1 import decode_pb2, prefill_pb2

Answer = prefill_pb2.PrefillResponse | decode_pb2.DecodeResponse
"""What a call says to its caller: once for Prefill, event by event for Decode."""


@dataclass(frozen=True, slots=True)
class _End:
    """Last entry of an outbox; `error` None means that the call ends well."""

    error: WireError | None


class CallOutbox:
    """What one call still has to say to its caller.

    Unbounded, yet never longer than a block: every entry is a delta, and a block has at most as many steps as
    positions.
    """

    def __init__(self, work: BlockWork) -> None:
        self.work = work
        self.ended = False
        self._entries: asyncio.Queue[Answer | _End] = asyncio.Queue()

    def send(self, message: Answer) -> None:
        """Queue one message for the caller."""
        assert not self.ended, f"{self.work.attempt}: message after the end"
        self._entries.put_nowait(message)

    def finish(self) -> None:
        """End the call well, after what is queued."""
        self._end(_End(None))

    def fail(self, error: WireError) -> None:
        """End the call with `error`, after what is queued. A call that has ended stays as it is."""
        if not self.ended:
            self._end(_End(error))

    def _end(self, end: _End) -> None:
        assert not self.ended, f"{self.work.attempt}: ended twice"
        self.ended = True
        self._entries.put_nowait(end)

    async def messages(self) -> AsyncIterator[Answer]:
        """Yield messages until the end; raises the call's `WireError` if it ended badly."""
        while not isinstance(entry := await self._entries.get(), _End):
            yield entry
        if entry.error is not None:
            raise entry.error


class CallTable:
    """Outboxes of the live calls, by attempt. Event loop only."""

    def __init__(self) -> None:
        self._calls: dict[BlockAttempt, CallOutbox] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._calls)

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
        """End every live call with that reason."""
        for outbox in self._calls.values():
            outbox.fail(WireError(reason, message))

    async def wait_empty(self) -> None:
        """Return when no call is live."""
        await self._empty.wait()
