"""How fast the cores are: events per second of a whole run, and what one event costs as cluster and queue grow.

`python -m common.bench.core` prints the tables; `make bench-core` runs it. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator, Sequence

from common.cli.table import render_table
from common.core import effects as fx
from common.core import events as ev
from common.core.cluster import WorkerSpec
from common.core.ids import RequestId, Role, ServingMode, WorkerId, WorkerLife
from common.core.options import Dispatch
from common.core.params import CacheMode, ConfidenceThreshold, SamplingParams
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.core.work import BlockCompletion, FinishReason, RequestSpec, StepDelta
from common.sim.cluster import SimCluster
from common.sim.metrics import summarise
from common.sim.options import build_run
from common.sim.settings import Settings

WORKERS = (8, 32, 128, 512, 1024, 4096)
QUEUED = (0, 100, 1_000, 10_000, 100_000)
EVENTS_PER_POINT = 4_000
BLOCK_TOKENS, PROMPT_TOKENS = 32, 480
PAGES_PER_BLOCK = (PROMPT_TOKENS + BLOCK_TOKENS) // 16
_SAMPLING = SamplingParams(strategy=ConfidenceThreshold(0.9), temperature=0.0, seed=1)
_PROMPT = (0,) * PROMPT_TOKENS


class LoadedScheduler:
    """A colocated scheduler whose every worker is full, with `queued` more requests waiting.

    Each turn ends one block, which lets the head of the queue take its place.
    """

    def __init__(self, *, workers: int, queued: int, blocks_per_worker: int = 4) -> None:
        # Late binding would fill the workers only while their prefills advance.
        config = SchedulerConfig(mode=ServingMode.COLOCATED, dispatch=Dispatch.EAGER, max_queued_requests=10**9)
        self._core = SchedulerCore(config)
        self._now = 0.0
        self._count = 0
        self._running: list[fx.CallDecode] = []
        for number in range(workers):
            self._handle(ev.WorkerRegistered(worker=_worker(number, blocks_per_worker)))
        for _ in range(workers * blocks_per_worker + queued):
            self.submit()
        assert len(self._running) == workers * blocks_per_worker, "every worker is full"

    @property
    def queued_blocks(self) -> int:
        """Blocks that wait."""
        return self._core.queued_blocks

    def submit(self) -> None:
        """One more request of one block."""
        self._count += 1
        spec = RequestSpec(
            request_id=RequestId(f"r{self._count:08d}"),
            prompt_token_ids=_PROMPT,
            max_tokens=BLOCK_TOKENS,
            block_length_tokens=BLOCK_TOKENS,
            cache_mode=CacheMode.DUAL,
            sampling=_SAMPLING,
            ignore_eos=True,
        )
        self._handle(ev.RequestSubmitted(spec=spec))

    def turn(self) -> None:
        """The oldest running block steps twice and ends; a new request arrives: four events."""
        call = self._running.pop(0)
        half = BLOCK_TOKENS // 2
        for step in range(2):
            self._handle(
                ev.DecodeStepped(call_id=call.call_id, step=_delta(step, range(step * half, (step + 1) * half)))
            )
        done = BlockCompletion(prefill_forwards=1, decode_forwards=1, finish=FinishReason.LENGTH)
        self._handle(ev.DecodeCompleted(call_id=call.call_id, completion=done))
        self.submit()

    def _handle(self, event: ev.SchedulerEvent) -> None:
        self._now += 1e-4
        effects = self._core.handle(event, self._now)
        self._running += [effect for effect in effects if isinstance(effect, fx.CallDecode)]


def handle_cost_us(*, workers: int, queued: int, events: int = EVENTS_PER_POINT) -> float:
    """Median microseconds per event over batches of 40 events."""
    stage = LoadedScheduler(workers=workers, queued=queued)
    gc.collect()
    costs_us = []
    for _ in range(events // 40):
        began_s = time.process_time()
        for _ in range(10):
            stage.turn()
        costs_us.append((time.process_time() - began_s) / 40 * 1e6)
    assert stage.queued_blocks == queued, "the queue keeps its length"
    return statistics.median(costs_us)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that `argv` asks for (all of them by default)."""
    parser = argparse.ArgumentParser(prog="python -m common.bench.core", description=__doc__)
    parser.add_argument("--part", choices=("speed", "workers", "queue", "cells", "all"), default="all")
    part = parser.parse_args(argv).part
    tables = {"speed": _speed, "workers": _by_workers, "queue": _by_queue, "cells": _by_cells}
    for name, table in tables.items():
        if part in (name, "all"):
            for line in table():
                print(line, flush=True)
    return 0


def _speed() -> Iterator[str]:
    yield "Core events per second of one process: whole runs (workers, wires, costs and hash included)"
    rows = []
    for mode in ServingMode:
        planned = build_run(Settings({"mode": mode.value, "requests": "300", "output-scale": "0.5", "qps": "5"}))
        # The run before is not this one's to clear away.
        gc.collect()
        began_s = time.process_time()
        metrics = summarise(SimCluster(planned.config, planned.requests).run())
        took_s = time.process_time() - began_s
        rate = f"{metrics.core_events / took_s:.0f}"
        rows.append([mode.value, str(metrics.core_events), f"{took_s:.2f}", rate, metrics.effects_hash[:12]])
    yield render_table(["mode", "core events", "seconds", "events/s", "hash"], rows)


def _by_workers() -> Iterator[str]:
    yield "Scheduler handle() by workers, 1000 blocks waiting"
    rows = [[str(workers), f"{handle_cost_us(workers=workers, queued=1000):.1f}"] for workers in WORKERS]
    yield render_table(["workers", "us per event"], rows)


def _by_queue() -> Iterator[str]:
    yield "Scheduler handle() by blocks waiting, 128 workers"
    rows = [[str(queued), f"{handle_cost_us(workers=128, queued=queued):.1f}"] for queued in QUEUED]
    yield render_table(["waiting", "us per event"], rows)


def _by_cells() -> Iterator[str]:
    yield "4096 workers in cells of 128 against one such cell, the same load per worker"
    base = {"mode": "colocated", "prefill-workers": "0", "decode-workers": "128", "workload": "arxiv"}
    rows, means_s = [], []
    for cells in (1, 32):
        load = {"cells": str(cells), "qps": str(100 * cells), "requests": str(400 * cells), "output-scale": "0.1"}
        planned = build_run(Settings({**base, **load}))
        began_s = time.process_time()
        metrics = summarise(SimCluster(planned.config, planned.requests).run())
        means_s.append(metrics.latency.mean)
        took = f"{time.process_time() - began_s:.0f}"
        figures = (metrics.latency.mean, metrics.latency.p99)
        rows.append([str(cells), str(128 * cells), *(f"{figure:.3f}" for figure in figures), took])
    yield render_table(["cells", "workers", "mean s", "p99 s", "CPU s"], rows)
    yield f"  mean of 32 cells over mean of one: {means_s[1] / means_s[0]:.3f}"


def _delta(step: int, positions: range) -> StepDelta:
    tokens = tuple(positions)
    return StepDelta(step=step, positions=tokens, token_ids=tokens, confidences=(1.0,) * len(tokens))


def _worker(number: int, blocks: int) -> WorkerSpec:
    name = f"w{number:05d}"
    return WorkerSpec(
        life=WorkerLife(WorkerId(name), 1),
        role=Role.DECODE,
        address=name,
        kv_transport="none",
        kv_address="",
        layout_fingerprint="layout",
        model_id="bench",
        pages_total=blocks * PAGES_PER_BLOCK,
        page_size_tokens=16,
        max_canvas_tokens=4096,
        token_budget_tokens=1024,
        max_batch_size=128,
    )


if __name__ == "__main__":
    raise SystemExit(main())
