"""What the services add to a request, side by side with the engine in process, in turns, request by request.

Two tables. `programs`: `sangam generate` at a cluster and `sangam generate --local`, as a user runs them. `warm`: a
client and an engine that are warm in one process; the client's time includes connecting, as one `sangam generate` does
it. In turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.bench.overhead_programs import SUM, WORD_PROBLEM, compare_programs, program_requests
from common.bench.overhead_times import COLUMNS, Times
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
WARM_UP_REQUESTS = 3
PROGRAMS, WARM = TABLES = ("programs", "warm")
_MODES = (ServingMode.HYBRID, ServingMode.COLOCATED, ServingMode.DISAGGREGATED)
_HEADER = ("mode", "request", *COLUMNS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam bench-overhead`."""
    parser.epilog = "About 12 minutes on 2 cores; none of its programs may take longer than a minute."
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="checkpoint folder (default: sangam-tiny, which is part of Sangam)"
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        default=TABLES,
        choices=TABLES,
        help="programs: sangam generate and sangam generate --local themselves, each with what it does by default; "
        "warm: client and engine warm in one process (all)",
    )
    modes = [mode.value for mode in _MODES]
    parser.add_argument("--modes", nargs="+", default=modes, choices=modes, help="which serving modes (all)")
    parser.add_argument(
        "--runs", type=int, default=9, metavar="N", help="programs: runs of each per row (default %(default)s)"
    )
    parser.add_argument(
        "--requests", type=int, default=40, metavar="N", help="warm: requests per row (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="warm: torch threads a side (default 1)")
    parser.add_argument("--device", default="cpu", help="torch device of both sides (default cpu)")


def run(args: argparse.Namespace) -> int:
    """Measure and print a report; returns 0. Raises ConfigError or CheckpointError."""
    for name in ("requests", "runs", "threads"):
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
        "a sum, defaults": GenerationInput(text=SUM, token_ids=None, max_tokens=DEFAULT_MAX_TOKENS),
        "a word problem, defaults": GenerationInput(text=WORD_PROBLEM, token_ids=None, max_tokens=DEFAULT_MAX_TOKENS),
        "32 tokens, dual": base,
        "128 tokens, dual": replace(base, max_tokens=128),
        "128 tokens, none": replace(base, max_tokens=128, cache_mode=CacheMode.NONE),
    }


async def _measure_all(args: argparse.Namespace, model_dir: Path) -> int:
    modes = [mode for mode in _MODES if mode.value in args.modes]
    if PROGRAMS in args.tables:
        rows = [row for mode in modes for row in await _program_rows(args, model_dir, mode)]
        print(_report("sangam generate at a cluster, and sangam generate --local: the total_s that they print", rows))
    if WARM in args.tables:
        rows = await _warm_rows(args, model_dir, modes)
        print(_report(f"client and engine warm in one process; {args.threads} torch thread(s) on each side", rows))
    return 0


async def _program_rows(args: argparse.Namespace, model_dir: Path, mode: ServingMode) -> list[tuple[str, ...]]:
    times: dict[str, Times] = {}
    async with Cluster(_cluster_config(args, model_dir, mode), say=say) as cluster:
        for name, words in program_requests().items():
            say(f"{mode.value}, {name}: {args.runs} runs of each program")
            times[name] = await compare_programs(
                words, address=cluster.gateway_address, model_dir=model_dir, device=args.device, count=args.runs
            )
    times["all of these"] = Times.of_all(times.values())
    return [(mode.value, name, *row.cells()) for name, row in times.items()]


async def _warm_rows(args: argparse.Namespace, model_dir: Path, modes: Sequence[ServingMode]) -> list[tuple[str, ...]]:
    import torch

    from common.cli.local_check import LocalCheck

    torch.set_num_threads(args.threads)
    requests = bench_requests()
    local = LocalCheck.load(model_dir, tuple(requests.values()), device=args.device, dtype="auto")
    rows: list[tuple[str, ...]] = []
    for mode in modes:
        config = replace(_cluster_config(args, model_dir, mode), torch_threads=args.threads, log_level="warning")
        async with Cluster(config, say=say) as cluster:
            for name, wanted in requests.items():
                say(f"{mode.value}, {name}, warm: {args.requests} requests on each side")
                times = await _measure(local, cluster.gateway_address, wanted, count=args.requests)
                rows.append((mode.value, name, *times.cells()))
    return rows


def _cluster_config(args: argparse.Namespace, model_dir: Path, mode: ServingMode) -> ClusterConfig:
    """What `sangam up` starts in that mode by itself."""
    return ClusterConfig(
        model_dir=model_dir,
        run_dir=new_run_dir(),
        mode=mode,
        prefill_workers=0 if mode is ServingMode.COLOCATED else 1,
        decode_workers=1,
        device=args.device,
    )


async def _measure(local: LocalCheck, address: str, wanted: GenerationInput, *, count: int) -> Times:
    """Take turns; the local side runs on the loop's own thread, for nothing else happens meanwhile."""
    times = Times()
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
            times.add(local_s=local_s, services_s=services_s)
    return times


def _report(title: str, rows: list[tuple[str, ...]]) -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{title}\nmilliseconds per request; {os.cpu_count()} cores, load {load}\n{render_table(_HEADER, rows)}\n"
