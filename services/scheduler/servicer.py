"""SchedulerService over gRPC: translates messages, and leaves every decision to the shell and its core."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from common.clock import Clock
from common.core.effects import FinishRequest, PublishBlock, PublishStep
from common.core.events import KvLeaseEnded, WorkerReported
from common.core.ids import MAX_TERM, RequestId, ServingMode, WorkerId
from common.core.work import WaitReason
from common.errors import InvalidRequest, Reason, WireError
from common.rpc.convert import (
    block_attempt_from_proto,
    block_attempt_to_proto,
    block_placement_to_proto,
    cluster_view_to_proto,
    finish_reason_to_proto,
    iteration_report_from_proto,
    request_spec_from_proto,
    serving_mode_to_proto,
    step_delta_to_proto,
    worker_life_from_proto,
    worker_life_to_proto,
    worker_spec_from_proto,
)
from common.rpc.deadline import child_timeout_s, remaining_s
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from services.scheduler.liveness import HeartbeatStream, Orders, stale
from services.scheduler.office import Office
from services.scheduler.outbox import RequestQueued, Shown
from services.scheduler.reign import Reign
from services.scheduler.wait_notices import RequestWaits

Context = grpc.aio.ServicerContext[Any, Any]

_WAIT_REASONS = {
    WaitReason.NO_WORKER: types_pb2.WAIT_REASON_NO_WORKER,
    WaitReason.TOO_LARGE: types_pb2.WAIT_REASON_TOO_LARGE,
}


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """The six RPCs, all NOT_LEADER while another scheduler leads. `mode` is what workers are told at registration."""

    def __init__(self, *, office: Office, clock: Clock, mode: ServingMode) -> None:
        self._office = office
        self._clock = clock
        self._mode = mode

    async def Schedule(
        self, request: scheduler_pb2.ScheduleRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.ScheduleResponse]:
        """Run one request, or share the one that runs; the end of its last call ends the request in the core too."""
        shell = self._office.reign().shell
        spec = request_spec_from_proto(request, deadline_s=child_timeout_s(context))
        outbox = shell.submit(spec)
        try:
            async for batch in outbox.batches():
                yield scheduler_pb2.ScheduleResponse(events=map(_schedule_event, batch))
        finally:
            late = remaining_s(context) == 0
            shell.abandon(outbox, Reason.DEADLINE_EXCEEDED if late else Reason.CANCELLED)

    async def CancelSchedule(
        self, request: scheduler_pb2.CancelScheduleRequest, context: Context
    ) -> scheduler_pb2.CancelScheduleResponse:
        """End a running request for all who share it; its pages are on their way back when this answers."""
        was_running = self._office.reign().shell.cancel(RequestId(request.request_id))
        return scheduler_pb2.CancelScheduleResponse(was_running=was_running)

    async def RegisterWorker(
        self, request: scheduler_pb2.RegisterWorkerRequest, context: Context
    ) -> scheduler_pb2.RegisterWorkerResponse:
        """Take a worker life on; idempotent while it lives.

        A life that served another term is refused (STALE_INCARNATION): what it still does for that term counts no more.
        So a worker may also ask this way which of two schedulers is the elder one.
        """
        reign = self._office.reign_over(_term(request.least_term, "least_term"))
        worker = worker_spec_from_proto(request)
        if request.life_term not in (0, reign.term):
            raise stale(worker.life, least_incarnation=worker.life.incarnation + 1, term=reign.term)
        reign.shell.register(worker)
        return scheduler_pb2.RegisterWorkerResponse(
            mode=serving_mode_to_proto(self._mode),
            heartbeat_timeout_ms=round(reign.liveness.timeout_s * 1000),
            term=reign.term,
        )

    async def Heartbeat(
        self, request_iterator: AsyncIterator[scheduler_pb2.HeartbeatRequest], context: Context
    ) -> AsyncIterator[scheduler_pb2.HeartbeatResponse]:
        """Reports up, orders down; the end of the stream is the end of the life."""
        first = await anext(request_iterator, None)
        if first is None:
            return
        reign = self._office.reign()
        reign.shell.check_serving()
        life = worker_life_from_proto(first.life)
        stream = reign.liveness.attach(life, self._clock.now())
        listening = reign.shell.spawn(self._listen(reign, stream, first, request_iterator))
        try:
            async for orders in stream:
                yield _orders_to_proto(orders)
        finally:
            listening.cancel()
            if reign.liveness.is_current(stream):
                reign.shell.lose(life, "its heartbeat stream ended")

    async def GetClusterState(
        self, request: scheduler_pb2.GetClusterStateRequest, context: Context
    ) -> scheduler_pb2.GetClusterStateResponse:
        """The core's view of the cluster."""
        return cluster_view_to_proto(self._office.reign().shell.view)

    async def DrainWorker(
        self, request: scheduler_pb2.DrainWorkerRequest, context: Context
    ) -> scheduler_pb2.DrainWorkerResponse:
        """Give a worker nothing new and tell it to finish; idempotent. Raises WORKER_NOT_FOUND."""
        reign = self._office.reign()
        reign.shell.drain(reign.liveness.life_of(WorkerId(request.worker_id)), order=True)
        return scheduler_pb2.DrainWorkerResponse()

    async def _listen(
        self,
        reign: Reign,
        stream: HeartbeatStream,
        first: scheduler_pb2.HeartbeatRequest,
        others: AsyncIterator[scheduler_pb2.HeartbeatRequest],
    ) -> None:
        """Read reports until the worker ends its side; then, or on a malformed message, end the stream."""
        try:
            self._heed(reign, stream, first)
            async for request in others:
                self._heed(reign, stream, request)
        except WireError as error:
            stream.close(error)
        except grpc.aio.BaseError:
            pass  # the call itself has ended; its handler is being cancelled
        finally:
            stream.close()

    def _heed(self, reign: Reign, stream: HeartbeatStream, request: scheduler_pb2.HeartbeatRequest) -> None:
        life = stream.life
        if not reign.liveness.is_current(stream):
            return
        reign.liveness.heard(life, self._clock.now())
        if request.HasField("report"):
            reign.shell.apply(WorkerReported(life=life, report=iteration_report_from_proto(request.report)))
        for ended in request.kv_ended:
            reign.shell.apply(KvLeaseEnded(owner=life, attempt=block_attempt_from_proto(ended)))
        if request.draining:
            reign.shell.drain(life, order=False)


def _term(number: int, field: str) -> int:
    if number > MAX_TERM:
        raise InvalidRequest(field, f"must be {MAX_TERM} or less")
    return number


def _schedule_event(item: Shown) -> scheduler_pb2.ScheduleEvent:
    match item:
        case RequestQueued():
            return scheduler_pb2.ScheduleEvent(queued=scheduler_pb2.ScheduleQueued(ahead=item.ahead))
        case PublishStep():
            step = scheduler_pb2.ScheduleStep(block=item.block, delta=step_delta_to_proto(item.step))
            return scheduler_pb2.ScheduleEvent(step=step)
        case PublishBlock():
            return scheduler_pb2.ScheduleEvent(block_committed=block_placement_to_proto(item.placement))
        case FinishRequest():
            finished = scheduler_pb2.ScheduleFinished(finish_reason=finish_reason_to_proto(item.finish))
            return scheduler_pb2.ScheduleEvent(finished=finished)
        case RequestWaits():
            return scheduler_pb2.ScheduleEvent(waiting=scheduler_pb2.ScheduleWaiting(reason=_WAIT_REASONS[item.reason]))


def _orders_to_proto(orders: Orders) -> scheduler_pb2.HeartbeatResponse:
    return scheduler_pb2.HeartbeatResponse(
        release_kv=[block_attempt_to_proto(attempt) for attempt in orders.release_kv],
        drain=orders.drain,
        lost_peers=[worker_life_to_proto(life) for life in orders.lost_peers],
    )
