"""Start a cluster of separate processes, send it prompts side by side, stream the answers, check them, stop it.

Exit code 0 means that all went right: every answer equals what the engine gives in process, every KV page came back,
and no process was left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass, replace

from common.cli.cluster import Cluster
from common.cli.cluster_config import ClusterConfig
from common.cli.gateway_client import generate_at, request_of
from common.cli.generation_output import GenerationOutput
from common.cli.interrupt import Interrupted, run_interruptible
from common.cli.status import fetch_state, unfree_pages
from common.cli.supervisor import ServiceFailed
from common.cli.table import render_table
from common.cli.up import add_cluster_arguments, cluster_config
from common.core.params import CacheMode, ConfidenceQuota, ConfidenceThreshold
from common.errors import SangamError
from common.generation_input import GenerationInput

REQUEST_TIMEOUT_S = 120.0
PAGES_BACK_TIMEOUT_S = 5.0
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
PIECE_CHARACTERS = 24
SHOWN_CHARACTERS = 28


def demo_requests() -> tuple[GenerationInput, ...]:
    """The prompts that the demo sends, each with other settings."""
    base = GenerationInput(text="The river runs", token_ids=None, max_tokens=64)
    return (
        base,
        replace(base, text="Once upon a time", cache_mode=CacheMode.PREFIX, strategy=ConfidenceThreshold(0.6)),
        replace(base, text="Two and two make", cache_mode=CacheMode.NONE, strategy=ConfidenceQuota(4)),
        replace(base, text="À la recherche du temps perdu", temperature=0.8, seed=7, strategy=ConfidenceQuota(2)),
        replace(base, text="Short", max_tokens=20, block_length_tokens=8),
        replace(base, text="Long " * 60, max_tokens=96, strategy=ConfidenceQuota(8)),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam demo`."""
    add_cluster_arguments(parser)
    parser.set_defaults(decode_workers=2, prefill_workers=None, log_level="warning")


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns 0 only if all went right. Raises ConfigError or CheckpointError."""
    config = cluster_config(args, host="127.0.0.1", grpc_port=0)
    try:
        return run_interruptible(_demo(config))
    except Interrupted:
        say("stopped")
        return EXIT_INTERRUPTED
    except ServiceFailed as error:
        print(f"sangam demo: error: {error}", file=sys.stderr)
        return EXIT_FAILED


def say(line: str) -> None:
    """A line for a person, in order with the streamed text."""
    print(f"== {line}", flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One prompt and what came of it."""

    wanted: GenerationInput
    output: GenerationOutput | None
    problem: str


async def _demo(config: ClusterConfig) -> int:
    problems: list[str] = []
    async with Cluster(config, say=say) as cluster:
        pids = cluster.processes
        say(f"{len(pids)} processes are up: {', '.join(f'{name} {pid}' for name, pid in pids.items())}")
        requests = demo_requests()
        say(f"sending {len(requests)} prompts at once to {cluster.gateway_address}")
        asked = await asyncio.gather(
            *(_ask(cluster.gateway_address, number, wanted) for number, wanted in enumerate(requests, start=1))
        )
        problems += await _missing_pages(cluster.scheduler_address)
        say("stopping everything")
    problems += [f"{name} (pid {pid}) is still running" for name, pid in pids.items() if _is_alive(pid)]
    say("comparing every answer with the engine in process")
    verdicts = await asyncio.to_thread(_verdicts, config, asked)
    print(_table(asked, verdicts))
    problems += [f"prompt {number}: {verdict}" for number, verdict in enumerate(verdicts, start=1) if verdict != "yes"]
    for problem in problems:
        print(f"sangam demo: error: {problem}", file=sys.stderr)
    say("something went wrong, see above" if problems else "all went right; nothing is left running")
    return EXIT_FAILED if problems else 0


async def _ask(address: str, number: int, wanted: GenerationInput) -> _Asked:
    pieces = _Pieces(number)
    try:
        output = await generate_at(address, request_of(wanted), timeout_s=REQUEST_TIMEOUT_S, on_text=pieces.add)
    except SangamError as error:
        return _Asked(wanted=wanted, output=None, problem=str(error))
    pieces.flush()
    return _Asked(wanted=wanted, output=output, problem="")


class _Pieces:
    """Shows one answer as it commits, a few words to the line: several answers share the terminal."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._held = ""

    def add(self, text: str) -> None:
        self._held += text
        if len(self._held) >= PIECE_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if self._held:
            print(f"   [{self._number}] {_printable(self._held)}", flush=True)
        self._held = ""


async def _missing_pages(scheduler_address: str) -> list[str]:
    """Wait for every KV page to come back, in the scheduler's ledger and by the workers' own word."""
    problems: list[str] = []
    deadline_s = asyncio.get_running_loop().time() + PAGES_BACK_TIMEOUT_S
    while True:
        state = await fetch_state(scheduler_address)
        problems = [
            f"{worker.life.worker_id}: {unfree_pages(worker)} of {worker.pages_total} KV pages in use when idle"
            for worker in state.workers
            if unfree_pages(worker)
        ]
        if not problems or asyncio.get_running_loop().time() > deadline_s:
            return problems
        await asyncio.sleep(0.05)


def _verdicts(config: ClusterConfig, asked: list[_Asked]) -> list[str]:
    # torch takes seconds to import: not before the cluster's own processes have done so.
    from common.cli.local_check import LocalCheck

    requests = [one.wanted for one in asked]
    check = LocalCheck.load(config.model_dir, requests, device=config.devices[0], dtype=config.dtype)
    return [one.problem if one.output is None else check.verdict(one.wanted, one.output) for one in asked]


def _table(asked: list[_Asked], verdicts: list[str]) -> str:
    header = (
        *("#", "prompt", "cache", "text", "tokens", "forwards", "per forward", "prefilled on", "KV moved"),
        "equals --local",
    )
    rows = [
        (str(number), *_cells(one), verdict)
        for number, (one, verdict) in enumerate(zip(asked, verdicts, strict=True), start=1)
    ]
    return render_table(header, rows)


def _cells(asked: _Asked) -> tuple[str, ...]:
    prompt, cache = _shortened(asked.wanted.text or ""), asked.wanted.cache_mode.value
    output = asked.output
    if output is None:
        return (prompt, cache, *("-",) * 6)
    forwards = output.prefill_forwards + output.decode_forwards
    prefilled_on = ", ".join(dict.fromkeys(block.prefill_worker_id for block in output.blocks))
    moved_bytes = sum(block.transfer_bytes for block in output.blocks)
    return (
        *(prompt, cache, _shortened(output.text), str(len(output.token_ids)), str(forwards)),
        *(f"{len(output.token_ids) / max(1, forwards):.1f}", prefilled_on, f"{moved_bytes / 1024:.0f} KiB"),
    )


def _shortened(text: str) -> str:
    shown = _printable(text)
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[: SHOWN_CHARACTERS - 1]}…"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
