"""What one Schedule call still has to tell its client."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator

from common.core.effects import FailRequest, FinishRequest, PublishBlock, PublishStep
from common.core.ids import RequestId
from common.errors import WireError
from common.rpc.status import wire_error_for
from common.telemetry import current_trace_id
from services.scheduler.wait_notices import RequestWaits

Shown = PublishStep | PublishBlock | FinishRequest | RequestWaits
Published = Shown | FailRequest


class RequestOutbox:
    """A queue from the core to one client. Deltas never repeat, so a canvas bounds its length; no back-pressure.

    One reader takes batches: all that came while it was busy. The last item it gets is FinishRequest, or the iteration
    raises WireError. `context` is the caller's: calls made for the request run in it and so belong to its trace
    `trace_id`.
    """

    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id
        self.context = contextvars.copy_context()
        self.trace_id = current_trace_id()
        self._items: asyncio.Queue[Published | WireError] = asyncio.Queue()

    def put(self, item: Published) -> None:
        """Append what there is to tell of this request."""
        self._items.put_nowait(item)

    def fail(self, error: WireError) -> None:
        """End the stream with an error that is not the core's in so many words."""
        self._items.put_nowait(error)

    async def batches(self) -> AsyncIterator[list[Shown]]:
        """Items in order, at least one at a time. Raises WireError (InvalidRequest with its field) on failure."""
        while True:
            batch: list[Shown] = []
            item = await self._items.get()
            while not isinstance(item, FailRequest | WireError):
                batch.append(item)
                if isinstance(item, FinishRequest) or self._items.empty():
                    break
                item = self._items.get_nowait()
            if batch:
                yield batch
            if isinstance(item, FinishRequest):
                return
            if isinstance(item, FailRequest | WireError):
                raise failure(item) if isinstance(item, FailRequest) else item


def failure(failed: FailRequest) -> WireError:
    """The error that a failed request's caller gets."""
    return wire_error_for(failed.reason, failed.message, field=failed.field)
