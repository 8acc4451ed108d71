"""The gateway's side of SchedulerService: calls to whichever scheduler leads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.core.work import RequestSpec
from common.errors import Reason, WireError
from common.rpc.convert import request_spec_to_proto
from common.rpc.leader_watch import SERVICE, LeaderWatch
from common.rpc.status import wire_error
from common.telemetry import trace_metadata
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.gateway.resume import Events, ScheduleBroken

FIRST_WORD_S = 0.5
"""How long a request waits for the first word of a leader before it counts as a broken call."""

_HEALTH_POLL_S = 0.1
_HEALTH_TIMEOUT_S = 1.0
_CANCEL_TIMEOUT_S = 2.0
# Codes that say nothing about the request: the call broke, or its server went away.
_BROKEN_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


Call = grpc.aio.UnaryStreamCall[scheduler_pb2.ScheduleRequest, scheduler_pb2.ScheduleResponse]


class SchedulerClient:
    """Calls the leader among the schedulers at `addresses`, while `run` runs.

    A call to one that leads no more is broken as soon as there is another, even if the first still seems to work on it:
    it may stand still, and its workers serve it no longer.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._watch = LeaderWatch(addresses)
        self._calls: dict[Call, str] = {}

    async def run(self) -> None:
        """Follow the leader until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            tasks.create_task(self._leave_former_leaders())

    async def schedule(self, spec: RequestSpec, *, timeout_s: float | None) -> Events:
        """See `services.gateway.resume.Scheduler.schedule`."""
        leader, stub = await self._stub()
        call = stub.Schedule(request_spec_to_proto(spec), timeout=timeout_s, metadata=trace_metadata())
        self._calls[call] = leader
        try:
            while (response := await self._read(call)) is not None:
                yield response
                if response.events and response.events[-1].HasField("finished"):
                    return
        finally:
            self._calls.pop(call, None)
            call.cancel()
        raise ScheduleBroken("its answer ended before the request did")

    async def cancel(self, request_id: str) -> bool:
        """See `services.gateway.resume.CancellingScheduler.cancel`."""
        _, stub = await self._stub()
        request = scheduler_pb2.CancelScheduleRequest(request_id=request_id)
        try:
            answer = await stub.CancelSchedule(request, timeout=_CANCEL_TIMEOUT_S, metadata=trace_metadata())
        except grpc.aio.AioRpcError as error:
            raise ScheduleBroken(wire_error(error).message) from None
        return bool(answer.was_running)

    async def wait_until_serving(self, *, timeout_s: float) -> bool:
        """See `services.gateway.resume.Scheduler.wait_until_serving`."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    # Asked anew: what the watch last heard may be of a scheduler that has just gone.
                    if await self._is_serving(await self._watch.leading()):
                        return True
                    await asyncio.sleep(_HEALTH_POLL_S)
        except TimeoutError:
            return False

    async def _stub(self) -> tuple[str, scheduler_pb2_grpc.SchedulerServiceAsyncStub]:
        """The leader's address and its stub. Raises `ScheduleBroken` when none leads."""
        leader = await self._leader_within(FIRST_WORD_S)
        if leader is None:
            raise ScheduleBroken("none leads")
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub
        stub = scheduler_pb2_grpc.SchedulerServiceStub(self._watch.channel(leader))
        return leader, stub

    async def _leader_within(self, limit_s: float) -> str | None:
        try:
            async with asyncio.timeout(limit_s):
                return self._watch.leader or await self._watch.leading()
        except TimeoutError:
            return None

    async def _leave_former_leaders(self) -> None:
        leader = ""
        while True:
            leader = await self._watch.other_than({leader})
            for call, asked in list(self._calls.items()):
                if asked != leader:
                    del self._calls[call]
                    call.cancel()

    async def _read(self, call: Call) -> scheduler_pb2.ScheduleResponse | None:
        """The next message, None at the end of the stream."""
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise _verdict(error) from None
        except asyncio.CancelledError:
            if call in self._calls or _is_being_cancelled():
                raise
            raise ScheduleBroken("another one leads now") from None
        return response if isinstance(response, scheduler_pb2.ScheduleResponse) else None

    async def _is_serving(self, address: str) -> bool:
        stub = health_pb2_grpc.HealthStub(self._watch.channel(address))
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=_HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _verdict(error: grpc.aio.AioRpcError) -> WireError:
    """Tell a scheduler's answer from a call that broke."""
    translated = wire_error(error)
    if translated.reason is Reason.CANCELLED:
        # Said by the scheduler itself: another gateway has ended the request. A call that broke has no such word.
        return translated
    transport_fault = error.code() is grpc.StatusCode.UNKNOWN and translated.reason is Reason.PEER_LOST
    if error.code() in _BROKEN_CODES or transport_fault:
        return ScheduleBroken(translated.message)
    return translated
