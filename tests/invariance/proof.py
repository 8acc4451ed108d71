"""`make invariance`: held-out questions to loaded clusters of each mode, with overflow and kills, against solo runs.

Every question is first answered alone by the engine in this process, then by clusters of real processes that answer
many at once while workers are killed. Exit code 0 only if every answer of every mode equals its solo answer, token for
token and in text, prefills overflowed in hybrid mode, kills cost attempts, and all pages came back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.checkpoint import check_checkpoint
from common.cli.default_model import default_model_dir
from common.cli.progress import Progress
from common.cli.table import render_table
from common.core.ids import ServingMode
from common.generation_input import GenerationInput
from tests.invariance.loaded_cluster import FLEETS, LoadedRun, run_loaded
from tests.invariance.solo import SoloAnswer, invariance_requests, solo_answers

SHOWN_PROBLEMS = 5
_HEADER = ("mode", "questions", "equal", "overflowed prefills", "blocks retried", "killed", "seconds")


def main() -> int:
    """Prove it; prints a table and returns the exit code."""
    args = _parser().parse_args()
    model_dir = (args.model or default_model_dir()).absolute()
    check_checkpoint(model_dir)
    requests = invariance_requests(args.questions, seed=args.seed)
    with Progress(len(requests), "questions") as progress:
        solo = solo_answers(
            model_dir, requests, device=args.device, on_answer=lambda done: progress.show(done, "one at a time")
        )
    runs = [
        asyncio.run(_run(ServingMode(mode), model_dir, requests, solo, device=args.device))
        for mode in dict.fromkeys(args.modes)
    ]
    print(render_table(_HEADER, [_row(run) for run in runs]))
    problems = [problem for run in runs for problem in run.problems]
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{len(problems)} problems" if problems else "every answer is the solo answer")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    modes = [mode.value for mode in ServingMode]
    parser = argparse.ArgumentParser(prog="python -m tests.invariance.proof", description=__doc__)
    parser.add_argument("--questions", type=_count, default=500, metavar="N", help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which questions are drawn (default 0)")
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes, help="default: all")
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint folder (default: the built-in one)")
    parser.add_argument("--device", default="cpu", metavar="D", help="of both sides: cpu or cuda:N (default cpu)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


async def _run(
    mode: ServingMode,
    model_dir: Path,
    requests: Sequence[GenerationInput],
    solo: Sequence[SoloAnswer],
    *,
    device: str,
) -> LoadedRun:
    (fleet,) = (fleet for fleet in FLEETS if fleet.mode is mode)
    with (
        tempfile.TemporaryDirectory(prefix="sangam-invariance-") as run_dir,
        Progress(len(requests), "questions") as progress,
    ):
        return await run_loaded(
            fleet,
            model_dir,
            Path(run_dir) / "run",
            requests,
            solo,
            device=device,
            on_answer=lambda done: progress.show(done, f"{mode.value} under load"),
        )


def _row(run: LoadedRun) -> tuple[str, ...]:
    equal = run.questions - len(run.differences)
    return (
        *(run.fleet.mode.value, str(run.questions), str(equal), str(run.overflowed_prefills)),
        *(str(run.retried_blocks), ", ".join(run.killed), f"{run.elapsed_s:.0f}"),
    )


if __name__ == "__main__":
    sys.exit(main())
