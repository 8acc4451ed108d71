"""What a user sees: `sangam generate` at a cluster, and `sangam generate --local`, each a process of its own, in turns.

Times are the `total_s` that both print: of the request from its admission on, so neither the start of Python nor the
loading of the model counts. Each engine of `--local` is cold, as is each client; the cluster is warm.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.bench.overhead_times import Times
from common.cli.supervisor import ServiceFailed, child_environment

RUN_TIMEOUT_S = 60.0
"""Longest that one of the programs may take."""

WORD_PROBLEM = "Tom has 3 boxes of 4 pens and gives away 5. How many pens are left?"
SUM = "What is 27 plus 48?"
_EXACT_TOKENS = (32, 64, 128, 256)


def program_requests() -> dict[str, tuple[str, ...]]:
    """What is asked for, by name, as words for `sangam generate`."""
    return {
        "a sum, defaults": ("--prompt", SUM),
        "a word problem, defaults": ("--prompt", WORD_PROBLEM),
        **{
            f"{tokens} tokens": ("--prompt", SUM, "--ignore-eos", "--max-tokens", str(tokens))
            for tokens in _EXACT_TOKENS
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    token_ids: list[int]
    total_s: float


async def compare_programs(words: Sequence[str], *, address: str, model_dir: Path, device: str, count: int) -> Times:
    """`count` pairs of the request that `words` describe; the cluster knows it by then. Raises `ServiceFailed`."""
    times = Times()
    await _generate(*words, "--address", address)
    for _ in range(count):
        local = await _generate(*words, "--local", "--model", str(model_dir), "--device", device)
        services = await _generate(*words, "--address", address)
        assert services.token_ids == local.token_ids, "both sides must do the same work"
        times.add(local_s=local.total_s, services_s=services.total_s)
    return times


async def _generate(*words: str) -> _Printed:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "common.cli", "generate", "--json", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
    )
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            printed, complaint = await process.communicate()
    except TimeoutError:
        raise ServiceFailed(f"sangam generate {' '.join(words)}: not done within {RUN_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ServiceFailed(f"sangam generate {' '.join(words)}: {complaint.decode(errors='replace').strip()}")
    output = json.loads(printed)
    return _Printed(token_ids=output["token_ids"], total_s=output["total_s"])
