"""A cluster of real processes under the load of many requests at once, with workers killed in the middle of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.cli.cluster import Cluster
from common.cli.gateway_client import generate_at, request_of
from common.cli.generation_output import GenerationOutput
from common.core.ids import ServingMode
from common.generation_input import GenerationInput
from sangam.v1 import scheduler_pb2
from tests.integration.cluster_help import all_pages_free, eventually, running_cluster, state_of
from tests.invariance.solo import SoloAnswer

CONCURRENCY = 32
REQUEST_TIMEOUT_S = 300.0
KV_PAGES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What runs, and who is killed: each of `killed` once, when equal shares of the answers are there."""

    mode: ServingMode
    prefill_workers: int
    decode_workers: int
    killed: tuple[str, ...]
    overload_threshold_tokens: int = 16384


FLEETS = (
    Fleet(mode=ServingMode.COLOCATED, prefill_workers=0, decode_workers=2, killed=("decode-0", "decode-1")),
    Fleet(mode=ServingMode.DISAGGREGATED, prefill_workers=1, decode_workers=2, killed=("prefill-0", "decode-0")),
    # Two or three prefills are over the threshold: the others overflow.
    Fleet(
        mode=ServingMode.HYBRID,
        prefill_workers=1,
        decode_workers=2,
        killed=("decode-1", "prefill-0"),
        overload_threshold_tokens=250,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """What a loaded cluster answered. `differences`: a line for each answer that is not the solo one."""

    fleet: Fleet
    questions: int
    differences: tuple[str, ...]
    overflowed_prefills: int
    retried_blocks: int
    killed: tuple[str, ...]
    elapsed_s: float

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that keeps this run from proving invariance, in this mode, under overflow and kills."""
        problems = list(self.differences)
        if self.killed != self.fleet.killed:
            problems.append(f"killed {self.killed}, not {self.fleet.killed}: the load ended too early")
        if not self.retried_blocks:
            problems.append("no block had to be tried again: the kills hit nothing")
        if bool(self.overflowed_prefills) != (self.fleet.mode is ServingMode.HYBRID):
            problems.append(f"{self.overflowed_prefills} prefills overflowed")
        return tuple(f"{self.fleet.mode.value}: {problem}" for problem in problems)


async def run_loaded(
    fleet: Fleet,
    model_dir: Path,
    run_dir: Path,
    requests: Sequence[GenerationInput],
    solo: Sequence[SoloAnswer],
    *,
    device: str,
    on_answer: Callable[[int], None],
) -> LoadedRun:
    """Start the fleet, ask everything, kill, compare, stop; every page must come back. Raises what a request raises."""
    async with running_cluster(
        model_dir,
        run_dir,
        mode=fleet.mode,
        prefill_workers=fleet.prefill_workers,
        decode_workers=fleet.decode_workers,
        overload_threshold_tokens=fleet.overload_threshold_tokens,
        kv_pages=KV_PAGES,
        device=device,
        log_level="warning",
        # What a killed scheduler or reader leaves at an owner is not waited for.
        worker_options=("--kv-lease-s", "5"),
    ) as cluster:
        load = _Load(cluster, fleet, requests, on_answer)
        started_s = time.monotonic()
        outputs = await load.run()
        elapsed_s = time.monotonic() - started_s
        await eventually(lambda: all_pages_free(cluster), timeout_s=60.0)
    return LoadedRun(
        fleet=fleet,
        questions=len(requests),
        differences=tuple(_differences(requests, solo, outputs)),
        overflowed_prefills=sum(block.overflow for output in outputs for block in output.blocks),
        retried_blocks=sum(block.attempts - 1 for output in outputs for block in output.blocks),
        killed=tuple(load.killed),
        elapsed_s=elapsed_s,
    )


class _Load:
    """The calls in flight, and the killer beside them."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        requests: Sequence[GenerationInput],
        on_answer: Callable[[int], None],
    ) -> None:
        self.killed: list[str] = []
        self._cluster = cluster
        self._fleet = fleet
        self._requests = requests
        self._on_answer = on_answer
        self._answered = 0

    async def run(self) -> list[GenerationOutput]:
        """All answers, in the requests' order."""
        slots = asyncio.Semaphore(CONCURRENCY)

        async def ask(wanted: GenerationInput) -> GenerationOutput:
            async with slots:
                output = await generate_at(
                    self._cluster.gateway_address,
                    request_of(wanted),
                    timeout_s=REQUEST_TIMEOUT_S,
                    on_text=lambda text: None,
                )
            self._answered += 1
            self._on_answer(self._answered)
            return output

        async with asyncio.TaskGroup() as group:
            killer = group.create_task(self._kill_in_turn())
            async with asyncio.TaskGroup() as calls:
                tasks = [calls.create_task(ask(wanted)) for wanted in self._requests]
            killer.cancel()
        return [task.result() for task in tasks]

    async def _kill_in_turn(self) -> None:
        """Kill -9 each victim while it works, the first when a share of the answers is there, and so on."""
        for number, name in enumerate(self._fleet.killed, start=1):
            share = len(self._requests) * number // (len(self._fleet.killed) + 1)

            async def is_time(name: str = name, share: int = share) -> bool:
                return self._answered >= share and await self._works(name)

            await eventually(is_time, timeout_s=REQUEST_TIMEOUT_S)
            os.kill(self._cluster.processes[name], signal.SIGKILL)
            self.killed.append(name)

    async def _works(self, name: str) -> bool:
        """Whether the worker runs and has a block."""
        workers = {worker.life.worker_id: worker for worker in (await state_of(self._cluster)).workers}
        worker = workers.get(name, scheduler_pb2.WorkerState())
        return name in self._cluster.processes and worker.live_blocks > 0


def _differences(
    requests: Sequence[GenerationInput], solo: Sequence[SoloAnswer], outputs: Sequence[GenerationOutput]
) -> list[str]:
    """A line for each answer that differs, with all that reproduces it."""
    pairs = zip(requests, solo, outputs, strict=True)
    return [f"{wanted}: {problem}" for wanted, alone, output in pairs if (problem := alone.difference(output))]
