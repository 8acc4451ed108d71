"""SchedulerService over gRPC: translates messages, and leaves every decision to the shell and its core."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from common.clock import Clock
from common.core.effects import FinishRequest, PublishBlock, PublishStep
from common.core.events import KvLeaseEnded, WorkerReported
from common.core.ids import ServingMode, WorkerId
from common.errors import Reason, WireError
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
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.liveness import HeartbeatStream, Liveness, Orders
from services.scheduler.outbox import Shown
from services.scheduler.shell import SchedulerShell

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """The five RPCs. `mode` is what workers are told at registration."""

    def __init__(self, *, shell: SchedulerShell, liveness: Liveness, clock: Clock, mode: ServingMode) -> None:
        self._shell = shell
        self._liveness = liveness
        self._clock = clock
        self._mode = mode

    async def Schedule(
        self, request: scheduler_pb2.ScheduleRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.ScheduleResponse]:
        """Run one request; its end, however it comes, ends the request in the core too."""
        spec = request_spec_from_proto(request, deadline_s=child_timeout_s(context))
        ahead = self._shell.queued_blocks
        outbox = self._shell.submit(spec)
        try:
            queued = scheduler_pb2.ScheduleEvent(queued=scheduler_pb2.ScheduleQueued(ahead=ahead))
            yield scheduler_pb2.ScheduleResponse(events=[queued])
            async for batch in outbox.batches():
                yield scheduler_pb2.ScheduleResponse(events=map(_schedule_event, batch))
        finally:
            late = remaining_s(context) == 0
            self._shell.abandon(outbox, Reason.DEADLINE_EXCEEDED if late else Reason.CANCELLED)

    async def RegisterWorker(
        self, request: scheduler_pb2.RegisterWorkerRequest, context: Context
    ) -> scheduler_pb2.RegisterWorkerResponse:
        """Take a worker life on; idempotent while it lives."""
        self._shell.register(worker_spec_from_proto(request))
        return scheduler_pb2.RegisterWorkerResponse(
            mode=serving_mode_to_proto(self._mode), heartbeat_timeout_ms=round(self._liveness.timeout_s * 1000)
        )

    async def Heartbeat(
        self, request_iterator: AsyncIterator[scheduler_pb2.HeartbeatRequest], context: Context
    ) -> AsyncIterator[scheduler_pb2.HeartbeatResponse]:
        """Reports up, orders down; the end of the stream is the end of the life."""
        first = await anext(request_iterator, None)
        if first is None:
            return
        self._shell.check_serving()
        life = worker_life_from_proto(first.life)
        stream = self._liveness.attach(life, self._clock.now())
        listening = self._shell.spawn(self._listen(stream, first, request_iterator))
        try:
            async for orders in stream:
                yield _orders_to_proto(orders)
        finally:
            listening.cancel()
            if self._liveness.is_current(stream):
                self._shell.lose(life, "its heartbeat stream ended")

    async def GetClusterState(
        self, request: scheduler_pb2.GetClusterStateRequest, context: Context
    ) -> scheduler_pb2.GetClusterStateResponse:
        """The core's view of the cluster."""
        return cluster_view_to_proto(self._shell.view)

    async def DrainWorker(
        self, request: scheduler_pb2.DrainWorkerRequest, context: Context
    ) -> scheduler_pb2.DrainWorkerResponse:
        """Give a worker nothing new and tell it to finish; idempotent. Raises WORKER_NOT_FOUND."""
        self._shell.drain(self._liveness.life_of(WorkerId(request.worker_id)), order=True)
        return scheduler_pb2.DrainWorkerResponse()

    async def _listen(
        self,
        stream: HeartbeatStream,
        first: scheduler_pb2.HeartbeatRequest,
        others: AsyncIterator[scheduler_pb2.HeartbeatRequest],
    ) -> None:
        """Read reports until the worker ends its side; then, or on a malformed message, end the stream."""
        try:
            self._heed(stream, first)
            async for request in others:
                self._heed(stream, request)
        except WireError as error:
            stream.close(error)
        except grpc.aio.BaseError:
            pass  # the call itself has ended; its handler is being cancelled
        finally:
            stream.close()

    def _heed(self, stream: HeartbeatStream, request: scheduler_pb2.HeartbeatRequest) -> None:
        life = stream.life
        if not self._liveness.is_current(stream):
            return
        self._liveness.heard(life, self._clock.now())
        if request.HasField("report"):
            self._shell.apply(WorkerReported(life=life, report=iteration_report_from_proto(request.report)))
        for ended in request.kv_ended:
            self._shell.apply(KvLeaseEnded(owner=life, attempt=block_attempt_from_proto(ended)))
        if request.draining:
            self._shell.drain(life, order=False)


def _schedule_event(item: Shown) -> scheduler_pb2.ScheduleEvent:
    match item:
        case PublishStep():
            step = scheduler_pb2.ScheduleStep(block=item.block, delta=step_delta_to_proto(item.step))
            return scheduler_pb2.ScheduleEvent(step=step)
        case PublishBlock():
            return scheduler_pb2.ScheduleEvent(block_committed=block_placement_to_proto(item.placement))
        case FinishRequest():
            finished = scheduler_pb2.ScheduleFinished(finish_reason=finish_reason_to_proto(item.finish))
            return scheduler_pb2.ScheduleEvent(finished=finished)


def _orders_to_proto(orders: Orders) -> scheduler_pb2.HeartbeatResponse:
    return scheduler_pb2.HeartbeatResponse(
        release_kv=[block_attempt_to_proto(attempt) for attempt in orders.release_kv],
        drain=orders.drain,
        lost_peers=[worker_life_to_proto(life) for life in orders.lost_peers],
    )
