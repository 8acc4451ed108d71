"""What the services add to a request: the same requests, one at a time, to the engine in process and to a cluster.

Both sides use the same checkpoint and number of torch threads, and take turns request by request, so that whatever
else the machine does falls on both. Times are of the whole request as its caller sees it, connecting included, as one
`sangam generate` does it; loading the model is not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.bench.percentile import percentile
from common.checkpoint import check_checkpoint
from common.cli.cluster import Cluster
from common.cli.cluster_config import ClusterConfig
from common.cli.default_model import default_model_dir
from common.cli.gateway_client import generate_at, request_of
from common.cli.generate import DEFAULT_MAX_TOKENS
from common.cli.interrupt import Interrupted, run_interruptible
from common.cli.run_dir import new_run_dir
from common.cli.supervisor import ServiceFailed
from common.cli.table import render_table
from common.core.ids import ServingMode
from common.core.params import CacheMode, ConfidenceQuota
from common.errors import ConfigError
from common.generation_input import GenerationInput

if TYPE_CHECKING:
    from common.cli.local_check import LocalCheck

PROG = "sangam bench-overhead"
ALLOWED_P50_S = 0.015
"""Most that the services should add at the median on an idle machine (the project's own figure)."""
WARM_UP_REQUESTS = 3
_WORD_PROBLEM = "Tom has 3 boxes of 4 pens and gives away 5. How many pens are left?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds per request, paired: entry i of both lists is the same request, one right after the other."""

    local_s: list[float]
    services_s: list[float]

    @property
    def added_s(self) -> list[float]:
        """What the services added to each request."""
        return [services - local for local, services in zip(self.local_s, self.services_s, strict=True)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam bench-overhead`."""
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="checkpoint folder (default: sangam-tiny, which is part of Sangam)"
    )
    parser.add_argument("--requests", type=int, default=40, metavar="N", help="requests per row (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="torch threads of each side (default 1)")
    parser.add_argument("--device", default="cpu", help="torch device of both sides (default cpu)")


def run(args: argparse.Namespace) -> int:
    """Measure and print a report; returns 0. Raises ConfigError or CheckpointError."""
    for name in ("requests", "threads"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name}: must be at least 1, not {getattr(args, name)}")
    model_dir = (args.model or default_model_dir()).absolute()
    check_checkpoint(model_dir)
    try:
        return run_interruptible(_measure_all(args, model_dir))
    except Interrupted:
        return 130
    except ServiceFailed as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 1


def say(line: str) -> None:
    """A line of progress."""
    print(f"{PROG}: {line}", file=sys.stderr, flush=True)


def bench_requests() -> dict[str, GenerationInput]:
    """What is measured, by name: what `sangam generate` asks for by itself, then 1 and 4 blocks of many forwards."""
    base = GenerationInput(
        text="The river runs", token_ids=None, max_tokens=32, strategy=ConfidenceQuota(4), ignore_eos=True
    )
    return {
        "a sum, defaults": GenerationInput(text="What is 27 plus 48?", token_ids=None, max_tokens=DEFAULT_MAX_TOKENS),
        "a word problem, defaults": GenerationInput(text=_WORD_PROBLEM, token_ids=None, max_tokens=DEFAULT_MAX_TOKENS),
        "32 tokens, dual": base,
        "128 tokens, dual": replace(base, max_tokens=128),
        "128 tokens, none": replace(base, max_tokens=128, cache_mode=CacheMode.NONE),
    }


async def _measure_all(args: argparse.Namespace, model_dir: Path) -> int:
    import torch

    from common.cli.local_check import LocalCheck

    torch.set_num_threads(args.threads)
    requests = bench_requests()
    local = LocalCheck.load(model_dir, tuple(requests.values()), device=args.device, dtype="auto")
    rows: list[tuple[str, ...]] = []
    for mode in (ServingMode.HYBRID, ServingMode.COLOCATED, ServingMode.DISAGGREGATED):
        config = ClusterConfig(
            model_dir=model_dir,
            run_dir=new_run_dir(),
            mode=mode,
            prefill_workers=0 if mode is ServingMode.COLOCATED else 1,
            decode_workers=1,
            device=args.device,
            torch_threads=args.threads,
            log_level="warning",
        )
        async with Cluster(config, say=say) as cluster:
            for name, wanted in requests.items():
                say(f"{mode.value}, {name}: {args.requests} requests on each side")
                times = await _measure(local, cluster.gateway_address, wanted, count=args.requests)
                rows.append((mode.value, name, *_cells(times)))
    print(_report(rows, args.threads))
    return 0


async def _measure(local: LocalCheck, address: str, wanted: GenerationInput, *, count: int) -> Times:
    """Take turns; the local side runs on the loop's own thread, for nothing else happens meanwhile."""
    times = Times(local_s=[], services_s=[])
    request = request_of(wanted)
    for index in range(WARM_UP_REQUESTS + count):
        started_s = time.perf_counter()
        expected = local.run(wanted)
        local_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        output = await generate_at(address, request, timeout_s=None, on_text=lambda text: None)
        services_s = time.perf_counter() - started_s
        assert output.token_ids == expected.token_ids, "both sides must do the same work"
        if index >= WARM_UP_REQUESTS:
            times.local_s.append(local_s)
            times.services_s.append(services_s)
    return times


def _cells(times: Times) -> tuple[str, ...]:
    columns = (times.local_s, times.services_s, times.added_s)
    within = percentile(times.added_s, 0.5) <= ALLOWED_P50_S
    cells = (f"{1000 * percentile(values, share):.1f}" for values in columns for share in (0.5, 0.9))
    return (*cells, "yes" if within else "no")


def _report(rows: list[tuple[str, ...]], threads: int) -> str:
    allowed_ms = f"{1000 * ALLOWED_P50_S:.0f} ms"
    header = (
        *("mode", "request", "local p50", "local p90", "services p50", "services p90"),
        *("added p50", "added p90", f"p50 within {allowed_ms}"),
    )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    title = f"milliseconds per request; {threads} torch thread(s) on each side, {os.cpu_count()} cores, load {load}"
    return f"{title}\n{render_table(header, rows)}"
