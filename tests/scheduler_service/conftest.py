"""A real scheduler service in this process, and a client of it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from common.config import SchedulerServiceConfig
from common.core.ids import RequestId, Role, ServingMode
from common.core.params import CacheMode, ConfidenceThreshold, SamplingParams
from common.core.work import RequestSpec
from common.rpc.channel import open_channel
from common.rpc.convert import request_spec_to_proto
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.service import serve
from tests.chaos.wire import Wire
from tests.redis_server import RedisServer
from tests.scheduler_service.scripted import ScriptedWorker, until


class Scheduler:
    """A running scheduler service and a stub to it."""

    def __init__(
        self,
        address: str,
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub,
        stop: asyncio.Event,
        ended: asyncio.Task[None],
    ) -> None:
        self.address = address
        self.stub = stub
        self.stop = stop
        self.ended = ended

    async def state(self) -> scheduler_pb2.GetClusterStateResponse:
        """The cluster's state."""
        return await self.stub.GetClusterState(scheduler_pb2.GetClusterStateRequest())

    async def until_idle(self) -> None:
        """Wait until no request runs and every page is free in the ledger."""

        def is_idle(state: scheduler_pb2.GetClusterStateResponse) -> bool:
            full = all(worker.pages_free == worker.pages_total for worker in state.workers)
            return full and not state.running_requests

        await self._until(is_idle)

    async def until_no_worker(self) -> None:
        """Wait until no worker is registered."""
        await self._until(lambda state: not state.workers)

    async def _until(self, holds: Callable[[scheduler_pb2.GetClusterStateResponse], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds(await self.state()):  # noqa: ASYNC110  # only asking can tell
                await asyncio.sleep(0.01)


StartScheduler = Callable[..., Awaitable[Scheduler]]
AddWorker = Callable[..., Awaitable[ScriptedWorker]]


def make_request(
    request_id: str = "r", *, max_tokens: int = 20, block_length: int = 8
) -> scheduler_pb2.ScheduleRequest:
    """A request in blocks of 8 tokens; by default three (8, 8 and 4)."""
    spec = RequestSpec(
        request_id=RequestId(request_id),
        prompt_token_ids=(1, 2, 3),
        max_tokens=max_tokens,
        block_length_tokens=8,
        cache_mode=CacheMode.DUAL,
        sampling=SamplingParams(strategy=ConfidenceThreshold(0.9), temperature=0.0, seed=1),
        ignore_eos=True,
    )
    return request_spec_to_proto(spec)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis of this test's own."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.resume()
    server.stop()


@pytest.fixture
async def wire(redis_server: RedisServer) -> AsyncIterator[Wire]:
    """Another way to that Redis, which can be cut."""
    wire = Wire("127.0.0.1", lambda: f"127.0.0.1:{redis_server.port}")
    async with asyncio.TaskGroup() as tasks:
        carrying = tasks.create_task(wire.run())
        yield wire
        carrying.cancel()


@pytest.fixture
async def start_scheduler(tmp_path: Path) -> AsyncIterator[StartScheduler]:
    """Start scheduler services; they are stopped, and must end well, when the test ends.

    Decodes follow their prefills unless `kv_overlap` is set, so that each test has one call at a time to hold up.
    """
    stack = AsyncExitStack()

    async def start(mode: ServingMode = ServingMode.DISAGGREGATED, **settings: object) -> Scheduler:
        ready_file = tmp_path / f"ready-{secrets.token_hex(4)}.json"
        chosen: dict[str, Any] = {"kv_overlap": False, **settings}
        config = SchedulerServiceConfig(mode=mode, ready_file=ready_file, **chosen)
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(config, stop))
        await until(lambda: ready_file.exists() or serving.done())
        address = json.loads(ready_file.read_text())["address"]

        async def end() -> None:
            stop.set()
            await serving

        stack.push_async_callback(end)
        channel = await stack.enter_async_context(open_channel(address))
        return Scheduler(address, scheduler_pb2_grpc.SchedulerServiceStub(channel), stop, serving)

    async with stack:
        yield start


@pytest.fixture
async def add_worker() -> AsyncIterator[AddWorker]:
    """Have scripted workers join a scheduler; they leave when the test ends."""
    async with AsyncExitStack() as stack:

        async def add(scheduler: Scheduler, worker_id: str, role: Role, *, incarnation: int = 1) -> ScriptedWorker:
            worker = ScriptedWorker(worker_id, role, incarnation=incarnation)
            stack.push_async_callback(worker.leave)
            await worker.join(scheduler.address)
            return worker

        yield add
