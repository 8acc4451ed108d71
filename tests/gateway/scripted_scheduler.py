"""A scheduler that plays a script over real gRPC: each Schedule call takes the next act."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from common.errors import Reason, WireError
from common.rpc.deadline import remaining_s
from common.rpc.server import RpcServer
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

Event = scheduler_pb2.ScheduleEvent
Response = scheduler_pb2.ScheduleResponse
Context = grpc.aio.ServicerContext[Any, Any]
Act = Callable[[scheduler_pb2.ScheduleRequest, Context], AsyncIterator[Response]]


def queued() -> Event:
    return Event(queued=scheduler_pb2.ScheduleQueued(ahead=0))


def step(block: int, number: int, revealed: dict[int, int]) -> Event:
    """Tokens revealed by one forward, as {position: token}."""
    positions = sorted(revealed)
    delta = types_pb2.StepDelta(
        step=number,
        positions=positions,
        token_ids=[revealed[position] for position in positions],
        confidences=[0.5 + position / 1024 for position in positions],
    )
    return Event(step=scheduler_pb2.ScheduleStep(block=block, delta=delta))


def block_committed(block: int, *, decode_forwards: int, attempts: int = 1) -> Event:
    return Event(
        block_committed=types_pb2.BlockPlacement(
            block=block,
            prefill_worker_id="p0",
            decode_worker_id="d0" if decode_forwards else "",
            prefill_forwards=1,
            decode_forwards=decode_forwards,
            attempts=attempts,
            transfer_bytes=4096,
        )
    )


def finished(reason: types_pb2.FinishReason = types_pb2.FINISH_REASON_LENGTH) -> Event:
    return Event(finished=scheduler_pb2.ScheduleFinished(finish_reason=reason))


def play(*events: Event) -> Act:
    """An act that sends `events` and ends."""

    async def act(request: scheduler_pb2.ScheduleRequest, context: Context) -> AsyncIterator[Response]:
        for event in events:
            yield Response(events=[event])

    return act


def play_at_once(*events: Event) -> Act:
    """An act that sends `events` in one message, as a scheduler does whose client is slow, and ends."""

    async def act(request: scheduler_pb2.ScheduleRequest, context: Context) -> AsyncIterator[Response]:
        yield Response(events=events)

    return act


def play_then_raise(error: Exception, *events: Event) -> Act:
    """An act that sends `events` and then fails."""

    async def act(request: scheduler_pb2.ScheduleRequest, context: Context) -> AsyncIterator[Response]:
        for event in events:
            yield Response(events=[event])
        raise error

    return act


def play_then_hang(*events: Event) -> Act:
    """An act that sends `events` and then nothing until it is cancelled."""

    async def act(request: scheduler_pb2.ScheduleRequest, context: Context) -> AsyncIterator[Response]:
        for event in events:
            yield Response(events=[event])
        await asyncio.Event().wait()

    return act


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Records what the gateway asked, and how each call ended."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.requests: list[scheduler_pb2.ScheduleRequest] = []
        self.remaining_s: list[float | None] = []
        self.cancelled = asyncio.Event()
        self.cancels: list[str] = []
        self.of_other_gateways: set[str] = set()
        self.address = ""

    async def Schedule(self, request: scheduler_pb2.ScheduleRequest, context: Context) -> AsyncIterator[Response]:
        self.requests.append(request)
        self.remaining_s.append(remaining_s(context))
        act = self.acts.pop(0)
        try:
            async for response in act(request, context):
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def CancelSchedule(
        self, request: scheduler_pb2.CancelScheduleRequest, context: Context
    ) -> scheduler_pb2.CancelScheduleResponse:
        self.cancels.append(request.request_id)
        return scheduler_pb2.CancelScheduleResponse(was_running=request.request_id in self.of_other_gateways)

    async def RegisterWorker(self, request: Any, context: Context) -> Any:
        raise AssertionError("a gateway never registers")

    def Heartbeat(self, request_iterator: Any, context: Context) -> Any:
        raise AssertionError("a gateway has no heartbeat")

    async def GetClusterState(self, request: Any, context: Context) -> Any:
        raise AssertionError("a gateway does not look at the cluster")

    async def DrainWorker(self, request: Any, context: Context) -> Any:
        raise AssertionError("a gateway drains nobody")

    def script(self, *acts: Act) -> None:
        """What the next calls get, in order."""
        self.acts.extend(acts)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[ScriptedScheduler]:
        """Serve on loopback while the block runs; leaving it breaks every call at once, as a crash would."""
        server = RpcServer(service_names=["sangam.v1.SchedulerService"])
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server.grpc)
        self.address = await server.start("127.0.0.1", port)
        await server.set_serving(True)
        try:
            yield self
        finally:
            await server.grpc.stop(None)


def revealed_tokens(tokens: Sequence[int], start: int = 0) -> dict[int, int]:
    """`tokens` at consecutive positions from `start`, for `step`."""
    return dict(enumerate(tokens, start))


FIRST = (queued(), step(0, 0, revealed_tokens(b"abcd")))
REST = (step(1, 0, revealed_tokens(b"efgh", 4)), finished())
"""Behind `FIRST`: together "abcdefgh" in two blocks of four tokens."""

LOST = WireError(Reason.PEER_LOST, "gone")
"""How a Schedule call ends whose scheduler has gone away."""
