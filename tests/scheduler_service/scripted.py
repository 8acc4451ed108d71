"""Test doubles around a real scheduler: workers and a registry over loopback gRPC that follow a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from common.core.cluster import WorkerSpec
from common.core.ids import Role, WorkerId, WorkerLife
from common.core.work import BlockCompletion, BlockWork, FinishReason, KvHandle, StepDelta
from common.errors import WireError
from common.rpc.channel import open_channel
from common.rpc.convert import (
    block_completion_to_proto,
    block_work_from_proto,
    kv_handle_to_proto,
    step_delta_to_proto,
    worker_life_to_proto,
    worker_spec_to_proto,
)
from common.rpc.server import RpcServer
from common.rpc.status import abort
from sangam.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_registry_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
)

PAGES = 64


def token_at(position: int) -> int:
    """The token that every scripted worker reveals at a position."""
    return 1000 + position


class ScriptedWorker(prefill_pb2_grpc.PrefillServiceServicer, decode_pb2_grpc.DecodeServiceServicer):
    """Prefill reveals the block's first token, Decode the rest; `gate` holds every call back until it is set.

    `lies`: what it reveals belongs to the block after the one it was asked for. `early` counts Decode calls for K/V
    that was still to be computed.
    """

    def __init__(self, worker_id: str, role: Role, *, incarnation: int = 1) -> None:
        self.role = role
        self.life = WorkerLife(WorkerId(worker_id), incarnation)
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.refusals: list[WireError] = []
        self.works: list[BlockWork] = []
        self.sources: list[str | None] = []
        self.timeouts_s: list[float | None] = []
        self.trace_parents: list[str] = []
        self.orders: list[scheduler_pb2.HeartbeatResponse] = []
        self.heartbeat_ended_with: grpc.StatusCode | None = None
        self.speaking = True
        self.gathers = False
        self.lies = False
        self.early = 0
        self._address = ""
        self._stack = contextlib.AsyncExitStack()
        self._heartbeat: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, scheduler_address: str) -> None:
        """Serve, register and begin to heartbeat."""
        server = RpcServer(service_names=[])
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(self, server.grpc)
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(self, server.grpc)
        self._address = await server.start("127.0.0.1", 0)
        self._stack.push_async_callback(server.stop, 0.0)
        channel = await self._stack.enter_async_context(open_channel(scheduler_address))
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await stub.RegisterWorker(worker_spec_to_proto(self.spec()))
        self._heartbeat = stub.Heartbeat()
        await self._heartbeat.write(scheduler_pb2.HeartbeatRequest(life=worker_life_to_proto(self.life)))
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._speak())]

    async def say(self, message: scheduler_pb2.HeartbeatRequest) -> None:
        """Send one heartbeat message."""
        await self._heartbeat.write(message)

    async def leave(self) -> None:
        """End the heartbeat and stop serving."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        await self._stack.aclose()

    def spec(self) -> WorkerSpec:
        """What this worker registers."""
        return WorkerSpec(
            life=self.life,
            role=self.role,
            address=self._address,
            kv_transport="tcp",
            kv_address="127.0.0.1:9",
            layout_fingerprint="layout",
            model_id="scripted",
            pages_total=PAGES,
            page_size_tokens=16,
            max_canvas_tokens=4096,
            token_budget_tokens=1024,
            max_batch_size=128,
        )

    async def Prefill(self, request: prefill_pb2.PrefillRequest, context: Any) -> prefill_pb2.PrefillResponse:
        """Reveal the block's first token and offer K/V, as a prefill worker does."""
        work = await self._begin(request.work, context)
        first = self._delta(work, 0, 0, 1)
        if self._is_whole(work, 1):
            completion = block_completion_to_proto(self._completion(work, decode_forwards=0))
            return prefill_pb2.PrefillResponse(first=step_delta_to_proto(first), completion=completion)
        handle = KvHandle(
            attempt=work.attempt,
            owner=self.life,
            transport="tcp",
            address="127.0.0.1:9",
            layout_fingerprint="layout",
            canvas_tokens=work.canvas_tokens,
            pages=work.pages(16),
            lease_s=30.0,
        )
        return prefill_pb2.PrefillResponse(first=step_delta_to_proto(first), kv=kv_handle_to_proto(handle))

    async def Decode(self, request: decode_pb2.DecodeRequest, context: Any) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Receive or compute the K/V, reveal what is left of the block in two steps, complete it.

        One message per event, or (`gathers`) one for all.
        """
        events = self._decode(request, context)
        if self.gathers:
            yield decode_pb2.DecodeResponse(events=[event async for event in events])
        async for event in events:
            yield decode_pb2.DecodeResponse(events=[event])

    async def _decode(self, request: decode_pb2.DecodeRequest, context: Any) -> AsyncIterator[decode_pb2.DecodeEvent]:
        source = request.WhichOneof("kv_source")
        self.sources.append(source)
        work = await self._begin(request.work, context)
        if source == "local_prefill":
            yield decode_pb2.DecodeEvent(step=step_delta_to_proto(self._delta(work, 0, 0, 1)))
        elif source == "remote":
            received = decode_pb2.KvReceived(transfer_s=0.01, transfer_bytes=1234)
            if not request.remote.HasField("first"):
                received.first.CopyFrom(step_delta_to_proto(self._delta(work, 0, 0, 1)))
                self.early += 1
            yield decode_pb2.DecodeEvent(kv_received=received)
        middle = work.block_length_tokens // 2
        for step, (start, end) in enumerate([(1, middle), (middle, work.block_length_tokens)], start=1):
            yield decode_pb2.DecodeEvent(step=step_delta_to_proto(self._delta(work, step, start, end)))
        completion = self._completion(work, decode_forwards=2)
        yield decode_pb2.DecodeEvent(block_completed=block_completion_to_proto(completion))

    async def _begin(self, message: Any, context: Any) -> BlockWork:
        work = block_work_from_proto(message)
        self.works.append(work)
        self.timeouts_s.append(context.time_remaining())
        self.trace_parents.append(dict(context.invocation_metadata()).get("traceparent", ""))
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.refusals:
            await abort(context, self.refusals.pop(0))
        return work

    def _delta(self, work: BlockWork, step: int, start: int, end: int) -> StepDelta:
        first = work.block_start_position + self.lies * work.block_length_tokens
        positions = tuple(range(first + start, min(first + end, work.max_tokens)))
        return StepDelta(
            step=step,
            positions=positions,
            token_ids=tuple(token_at(position) for position in positions),
            confidences=(0.5,) * len(positions),
        )

    def _is_whole(self, work: BlockWork, revealed: int) -> bool:
        return min(work.block_length_tokens, work.max_tokens - work.block_start_position) <= revealed

    def _completion(self, work: BlockWork, *, decode_forwards: int) -> BlockCompletion:
        last = work.block_start_position + work.block_length_tokens >= work.max_tokens
        finish = FinishReason.LENGTH if last else None
        return BlockCompletion(prefill_forwards=1, decode_forwards=decode_forwards, finish=finish)

    async def _listen(self) -> None:
        try:
            async for orders in self._heartbeat:
                self.orders.append(orders)
        except grpc.aio.AioRpcError as error:
            self.heartbeat_ended_with = error.code()

    async def _speak(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await asyncio.sleep(0.05)
                if self.speaking:
                    await self._heartbeat.write(scheduler_pb2.HeartbeatRequest())


class ScriptedRegistry:
    """Remembers which lives were fenced; refuses the first `failures` calls. Knows no other RPC."""

    def __init__(self, *, failures: int) -> None:
        self.failures = failures
        self.fenced: list[tuple[str, int]] = []

    def add_to(self, server: RpcServer) -> None:
        """Serve FenceWorker on `server`."""
        handler = grpc.unary_unary_rpc_method_handler(
            self._fence,
            request_deserializer=kv_registry_pb2.FenceWorkerRequest.FromString,
            response_serializer=kv_registry_pb2.FenceWorkerResponse.SerializeToString,
        )
        methods = {"FenceWorker": handler}
        server.grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("sangam.v1.KvRegistryService", methods),)
        )

    async def _fence(
        self, request: kv_registry_pb2.FenceWorkerRequest, context: Any
    ) -> kv_registry_pb2.FenceWorkerResponse:
        if self.failures:
            self.failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "scripted")
        self.fenced.append((request.life.worker_id, request.life.incarnation))
        return kv_registry_pb2.FenceWorkerResponse()


async def until(condition: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    """Wait until the condition holds; fails the test after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # gRPC's own tasks change it, no event can tell
            await asyncio.sleep(0.01)
