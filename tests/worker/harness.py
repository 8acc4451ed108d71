"""Real workers in this process, reached over loopback gRPC, and the part of a scheduler that drives a request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from common.config import WorkerConfig
from common.core.ids import BlockAttempt, Role
from common.core.params import CacheMode
from common.core.work import BlockWork, KvSource, LocalPrefill, NoKv, RemoteKv, RequestSpec
from common.engine.engine import BlockState, Engine, StepResult
from common.engine.generator import LocalGenerator
from common.rpc.channel import open_channel
from common.rpc.convert import (
    block_attempt_to_proto,
    block_work_to_proto,
    kv_handle_from_proto,
    kv_source_to_proto,
    step_delta_from_proto,
)
from common.worker.app import WorkerApp
from sangam.v1 import decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc, scheduler_pb2, types_pb2
from tests.engine.checkpoints import GOLDEN_DIR
from tests.worker.scripted_scheduler import SchedulerServer
from tests.worker.waiting import PATIENCE_S, eventually

PAGES = 64


class HeldEngine:
    """An engine whose forwards wait at a gate, so that a test can look at a worker in the middle of one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gate = threading.Event()
        self._gate.set()
        self.entered = threading.Event()
        self.fault: Exception | None = None
        self.on_computed: Callable[[int, Callable[[int], None]], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def is_released(self) -> bool:
        """Whether forwards may end."""
        return self._gate.is_set()

    def hold(self) -> None:
        """Let the next forward begin, and not end before `release`."""
        self.entered.clear()
        self._gate.clear()

    def release(self) -> None:
        """Let forwards end."""
        self._gate.set()

    async def until_held(self) -> None:
        """Return once a forward waits at the gate."""
        assert await asyncio.to_thread(self.entered.wait, PATIENCE_S)

    async def step_once(self) -> None:
        """Let the forward that is held end, and hold the next; return when that one waits."""
        self.entered.clear()
        self._gate.set()
        self._gate.clear()
        await self.until_held()

    def step(self, items: Sequence[BlockState], *, on_layer: Callable[[int], None] | None = None) -> list[StepResult]:
        """The engine's step, behind the gate; raises `fault` when a test has set one.

        `on_computed`, when a test has set it, is called for each layer in the place of `on_layer`, which it gets.
        """
        self.entered.set()
        assert self._gate.wait(PATIENCE_S)
        if self.fault is not None:
            raise self.fault
        if (on_computed := self.on_computed) is None or (tell := on_layer) is None:
            return self._engine.step(items, on_layer=on_layer)
        return self._engine.step(items, on_layer=lambda layer: on_computed(layer, tell))


class RunningWorker:
    """One `WorkerApp` that runs in a task of its own."""

    def __init__(self, role: Role, scheduler: SchedulerServer, model_dir: Path, **changes: Any) -> None:
        values: dict[str, Any] = {
            "worker_id": f"{role.value}-0",
            "scheduler_address": scheduler.address,
            "model_dir": model_dir,
            "kv_pages": PAGES,
        }
        config = WorkerConfig(**(values | changes))
        engine = Engine.load(model_dir, device="cpu", dtype=None, num_pages=config.kv_pages)
        self.engine = HeldEngine(engine)
        self.app = WorkerApp(role=role, config=config, engine=cast(Engine, self.engine))
        self.stop = asyncio.Event()
        self._scheduler = scheduler

    async def start(self) -> None:
        """Run until the scheduler has heard the first heartbeat of this life."""
        self.task = asyncio.create_task(self.app.run(self.stop))
        scheduler = self._scheduler.scheduler
        await scheduler.until(
            lambda: any(beat.life.worker_id == self.app.life.worker_id for beat in scheduler.heartbeats)
        )
        self.channel = open_channel(self.app.address)
        self.prefill_stub = prefill_pb2_grpc.PrefillServiceStub(self.channel)
        self.decode_stub = decode_pb2_grpc.DecodeServiceStub(self.channel)

    async def close(self) -> None:
        """Stop as by SIGTERM; every page must be back."""
        self.engine.release()
        self.stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        await self.channel.close()
        assert self.app.view().idle, self.app.view()
        self.app.check_conservation()

    def request_prefill(self, work: BlockWork, *, incarnation: int | None = None) -> Any:
        """A Prefill call, not awaited."""
        target = self.app.life.incarnation if incarnation is None else incarnation
        return self.prefill_stub.Prefill(
            prefill_pb2.PrefillRequest(work=block_work_to_proto(work, target_incarnation=target))
        )

    async def request_release(self, work: BlockWork) -> None:
        """Have the scheduler give the retained K/V of `work` up, and wait until it is gone."""
        attempts = [block_attempt_to_proto(work.attempt)]
        orders = scheduler_pb2.HeartbeatResponse(release_kv=attempts)
        self._scheduler.scheduler.order(self.app.life.worker_id, orders)
        await eventually(lambda: work.attempt not in self.app.view().retained)

    def request_decode(
        self, work: BlockWork, source: KvSource, *, incarnation: int | None = None, timeout_s: float | None = None
    ) -> Any:
        """A Decode call, not yet read."""
        target = self.app.life.incarnation if incarnation is None else incarnation
        request = decode_pb2.DecodeRequest(work=block_work_to_proto(work, target_incarnation=target))
        kv_source_to_proto(source, request)
        return self.decode_stub.Decode(request, timeout=timeout_s)


@asynccontextmanager
async def workers(
    *roles: Role,
    model: str = "llada-gqa",
    may_fail: bool = False,
    first: SchedulerServer | None = None,
    kv_pages_of: Mapping[Role, int] | None = None,
    **changes: Any,
) -> AsyncIterator[list[RunningWorker]]:
    """Workers of those roles around one scripted scheduler, stopped at the end with every page back.

    `may_fail`: the test breaks them itself, and looks at how they end. `first`: a scheduler that serves already and
    that the test stops; the workers register with it first.
    """
    scheduler = first or SchedulerServer()
    if first is None:
        await scheduler.start()
    started: list[RunningWorker] = []
    try:
        for role in roles:
            pages = {"kv_pages": kv_pages_of[role]} if kv_pages_of and role in kv_pages_of else {}
            worker = RunningWorker(role, scheduler, GOLDEN_DIR / model, **(changes | pages))
            await worker.start()
            started.append(worker)
        yield started
        for worker in started if not may_fail else ():
            await worker.close()
    finally:
        for worker in started:
            worker.engine.release()
            worker.stop.set()
        await asyncio.gather(*(worker.task for worker in started), return_exceptions=True)
        await asyncio.gather(*(worker.channel.close() for worker in started))
        if first is None:
            await scheduler.stop()


def scheduler_of(worker: RunningWorker) -> SchedulerServer:
    """The scripted scheduler that this worker is registered with."""
    return worker._scheduler


def block_work(spec: RequestSpec, *, generated: Sequence[int] = (), attempt: int = 0) -> BlockWork:
    """The block of `spec` that follows the tokens `generated`."""
    return BlockWork(
        attempt=BlockAttempt(spec.request_id, len(generated) // spec.block_length_tokens, attempt),
        prompt_token_ids=spec.prompt_token_ids,
        generated_token_ids=tuple(generated),
        max_tokens=spec.max_tokens,
        block_length_tokens=spec.block_length_tokens,
        cache_mode=spec.cache_mode,
        sampling=spec.sampling,
        ignore_eos=spec.ignore_eos,
    )


@dataclass
class Outcome:
    """What a request came to: tokens by position, forwards, and every message that Decode calls sent."""

    tokens: dict[int, int] = field(default_factory=dict)
    prefill_forwards: int = 0
    decode_forwards: int = 0
    events: list[decode_pb2.DecodeEvent] = field(default_factory=list)
    finish: types_pb2.FinishReason = types_pb2.FINISH_REASON_UNSPECIFIED

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens in order of position."""
        assert sorted(self.tokens) == list(range(len(self.tokens))), "a hole"
        return tuple(self.tokens[position] for position in sorted(self.tokens))

    def reveal(self, step: types_pb2.StepDelta) -> None:
        """Note a delta; no position may come twice."""
        for position, token in zip(step.positions, step.token_ids, strict=True):
            assert position not in self.tokens, "revealed twice"
            self.tokens[position] = token

    def complete(self, completion: types_pb2.BlockCompletion) -> None:
        """Note the end of a block."""
        self.prefill_forwards += completion.prefill_forwards
        self.decode_forwards += completion.decode_forwards
        self.finish = completion.finish_reason


def local_token_ids(model_dir: Path, specs: Sequence[RequestSpec]) -> list[tuple[int, ...]]:
    """What each request generates alone, without services."""
    engine = Engine.load(model_dir, device="cpu", dtype=None, num_pages=PAGES)
    return [LocalGenerator(engine).run(spec).token_ids for spec in specs]


async def run_colocated(worker: RunningWorker, spec: RequestSpec) -> Outcome:
    """Every block by one Decode call with a local prefill."""
    outcome = Outcome()
    while outcome.finish == types_pb2.FINISH_REASON_UNSPECIFIED:
        await read_decode(worker.request_decode(block_work(spec, generated=outcome.token_ids), LocalPrefill()), outcome)
    return outcome


async def run_disaggregated(prefill: RunningWorker, decode: RunningWorker, spec: RequestSpec) -> Outcome:
    """Every block by a Prefill call, then a Decode call elsewhere unless the prefill finished it."""
    outcome = Outcome()
    while outcome.finish == types_pb2.FINISH_REASON_UNSPECIFIED:
        work = block_work(spec, generated=outcome.token_ids)
        response = await prefill.request_prefill(work)
        outcome.reveal(response.first)
        if response.HasField("completion"):
            outcome.complete(response.completion)
            continue
        await read_decode(decode.request_decode(work, source_after(work, response)), outcome)
    return outcome


def source_after(work: BlockWork, response: prefill_pb2.PrefillResponse) -> KvSource:
    """Where a decode worker finds the K/V of that prefill."""
    first = step_delta_from_proto(response.first)
    assert response.HasField("kv") == (work.cache_mode is not CacheMode.NONE)
    return (
        RemoteKv(handle=kv_handle_from_proto(response.kv), first=first)
        if response.HasField("kv")
        else NoKv(first=first)
    )


async def read_decode(call: Any, outcome: Outcome) -> None:
    """Read a Decode call to its end."""
    while isinstance(message := await call.read(), decode_pb2.DecodeResponse):
        assert message.events, "an empty message"
        for event in message.events:
            outcome.events.append(event)
            match event.WhichOneof("event"):
                case "step":
                    outcome.reveal(event.step)
                case "block_completed":
                    outcome.complete(event.block_completed)
