"""The gRPC face of a worker: each call becomes one core event, its outbox becomes the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from common.core.worker_events import DecodeRequested, PrefillRequested
from common.rpc.convert import block_work_from_proto, kv_source_from_proto
from common.worker.reception import Reception
from sangam.v1 import decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc

if TYPE_CHECKING:
    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """PrefillService of a prefill worker."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def Prefill(self, request: prefill_pb2.PrefillRequest, context: Context) -> prefill_pb2.PrefillResponse:
        """Run one prefill; cancelling the call frees its pages within one iteration."""
        event = PrefillRequested(work=block_work_from_proto(request.work))
        with self._reception.accept(event, target_incarnation=request.work.target_incarnation) as outbox:
            (response,) = [answer async for batch in outbox.batches() for answer in batch]
        assert isinstance(response, prefill_pb2.PrefillResponse)
        return response


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """DecodeService of a decode worker."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def Decode(
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Denoise one block, deltas only; cancelling the call frees its pages within one iteration."""
        event = DecodeRequested(work=block_work_from_proto(request.work), source=kv_source_from_proto(request))
        with self._reception.accept(event, target_incarnation=request.work.target_incarnation) as outbox:
            async for batch in outbox.batches():
                yield decode_pb2.DecodeResponse(events=cast("Sequence[decode_pb2.DecodeEvent]", batch))
