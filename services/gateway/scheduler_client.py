"""The gateway's side of SchedulerService."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.core.work import RequestSpec
from common.errors import Reason, WireError
from common.rpc.convert import request_spec_to_proto
from common.rpc.status import wire_error
from common.telemetry import trace_metadata
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.gateway.resume import Events, ScheduleBroken

_HEALTH_POLL_S = 0.1
# Codes that say nothing about the request: the call broke, or its server went away.
_BROKEN_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


class SchedulerClient:
    """Calls one scheduler over `channel`, which it does not own."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    async def schedule(self, spec: RequestSpec, *, timeout_s: float | None) -> Events:
        """See `services.gateway.resume.Scheduler.schedule`."""
        call = self._stub.Schedule(request_spec_to_proto(spec), timeout=timeout_s, metadata=trace_metadata())
        try:
            while (response := await self._read(call)) is not None:
                yield response
                if response.events and response.events[-1].HasField("finished"):
                    return
        finally:
            call.cancel()
        raise ScheduleBroken("its answer ended before the request did")

    async def wait_until_serving(self, *, timeout_s: float) -> bool:
        """See `services.gateway.resume.Scheduler.wait_until_serving`."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if await self._is_serving(timeout_s):
                        return True
                    await asyncio.sleep(_HEALTH_POLL_S)
        except TimeoutError:
            return False

    async def _read(
        self, call: grpc.aio.UnaryStreamCall[scheduler_pb2.ScheduleRequest, scheduler_pb2.ScheduleResponse]
    ) -> scheduler_pb2.ScheduleResponse | None:
        """The next message, None at the end of the stream."""
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise _verdict(error) from None
        return response if isinstance(response, scheduler_pb2.ScheduleResponse) else None

    async def _is_serving(self, timeout_s: float) -> bool:
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _verdict(error: grpc.aio.AioRpcError) -> WireError:
    """Tell a scheduler's answer from a call that broke."""
    translated = wire_error(error)
    transport_fault = error.code() is grpc.StatusCode.UNKNOWN and translated.reason is Reason.PEER_LOST
    if error.code() in _BROKEN_CODES or transport_fault:
        return ScheduleBroken(translated.message)
    return translated
