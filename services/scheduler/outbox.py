"""What one Schedule call still has to tell its client."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from dataclasses import dataclass

from common.core.effects import FailRequest, FinishRequest, PublishBlock, PublishStep
from common.core.ids import RequestId
from common.errors import WireError
from common.rpc.status import wire_error_for
from common.telemetry import current_trace_id
from services.scheduler.wait_notices import RequestWaits

ACCEPTANCE_WAIT_S = 0.02
"""Longest that the word of a request's acceptance waits for its first tokens: a message costs every hop half a
millisecond, and who asks sees no difference."""


MESSAGE_INTERVAL_S = 0.02
"""Least time between two messages of tokens to one client: those of quicker steps and blocks share one. The first and
the last leave at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueued:
    """The scheduler has taken the request on, behind `ahead` blocks that waited then."""

    ahead: int


Shown = RequestQueued | PublishStep | PublishBlock | FinishRequest | RequestWaits
Published = Shown | FailRequest


class RequestOutbox:
    """A queue from the core to one client. Deltas never repeat, so a canvas bounds its length; no back-pressure.

    It begins with RequestQueued. One reader takes batches: all that came while it was busy. The last item it gets is
    FinishRequest, or the iteration raises WireError. `context` is the caller's: calls made for the request run in it
    and so belong to its trace `trace_id`.
    """

    def __init__(self, request_id: RequestId, *, ahead: int) -> None:
        self.request_id = request_id
        self.context = contextvars.copy_context()
        self.trace_id = current_trace_id()
        self._items: list[Published | WireError] = [RequestQueued(ahead=ahead)]
        self._due = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None

    def put(self, item: Published) -> None:
        """Append what there is to tell of this request."""
        self._items.append(item)
        if self._pause is None or isinstance(item, FinishRequest | FailRequest):
            self._due.set()

    def fail(self, error: WireError) -> None:
        """End the stream with an error that is not the core's in so many words."""
        self._items.append(error)
        self._due.set()

    async def batches(self) -> AsyncIterator[list[Shown]]:
        """Items in order, at least one at a time. Raises WireError (InvalidRequest with its field) on failure."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ACCEPTANCE_WAIT_S, self._due.set)
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                timer.cancel()
                items, self._items = self._items, []
                shown, end = _cut(items)
                if not end and not all(isinstance(item, RequestQueued) for item in shown):
                    timer = self._pause = loop.call_later(MESSAGE_INTERVAL_S, self._pause_over)
                if shown:
                    yield shown
                if isinstance(end, FinishRequest):
                    return
                if end is not None:
                    raise failure(end) if isinstance(end, FailRequest) else end
        finally:
            timer.cancel()

    def _pause_over(self) -> None:
        self._pause = None
        if self._items:
            self._due.set()


def _cut(items: list[Published | WireError]) -> tuple[list[Shown], FinishRequest | FailRequest | WireError | None]:
    """What to show of these, and the end of the stream, if it is among them: nothing counts after that."""
    shown: list[Shown] = []
    for item in items:
        if isinstance(item, FailRequest | WireError):
            return shown, item
        shown.append(item)
        if isinstance(item, FinishRequest):
            return shown, item
    return shown, None


def failure(failed: FailRequest) -> WireError:
    """The error that a failed request's caller gets."""
    return wire_error_for(failed.reason, failed.message, field=failed.field)
