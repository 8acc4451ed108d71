"""`make chaos`: a storm from a seed, its table, and exit code 1 when a promise was broken.

Everything random comes from the seed; when what happens falls on is up to the machine, so a run is repeated in kind,
not to the letter. What the cores did is, by `sangam replay`: a run with problems leaves its stories and logs behind.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from common.random_checkpoint import build_random_checkpoint
from tests.chaos.faults import Mischief
from tests.chaos.report import late, render
from tests.chaos.requests import mixed_requests
from tests.chaos.storm import StormPlan, storm
from tests.chaos.wired_cluster import Fleet
from tests.invariance.solo import solo_answers

KINDS = ("scheduler", "prefill", "decode", "kv_store")
LONGEST_TOKENS = 448


def main() -> int:
    """Run it; 0 when every promise was kept."""
    args = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="sangam-chaos-"))
    build_random_checkpoint(folder / "model")
    requests = mixed_requests(args.requests, seed=args.seed, longest_tokens=LONGEST_TOKENS)
    _say(f"seed {args.seed}: {len(requests)} requests, each by itself first")
    solo = solo_answers(folder / "model", requests, on_answer=_tell_alone)
    plan = StormPlan(
        fleet=Fleet(schedulers=2, prefill_workers=2, decode_workers=2, wired=("prefill-0", "decode-1")),
        mischief=Mischief(kinds=KINDS, kill_every_s=args.kill_every_s),
        clients=args.clients,
        seed=args.seed,
    )
    result = asyncio.run(storm(plan, folder / "model", folder / "run", requests, solo, say=_say))
    print(render(result))
    broken = [*result.problems, *late(result)]
    for line in broken:
        print(f"BROKEN: {line}")
    if broken:
        print(f"logs and stories: {folder / 'run'}; the same again: make chaos SEED={args.seed}")
        return 1
    shutil.rmtree(folder)
    print("every promise was kept")
    return 0


_STARTED_S = time.monotonic()


def _say(line: str) -> None:
    print(f"{time.monotonic() - _STARTED_S:7.1f} s  {line}", file=sys.stderr, flush=True)


def _tell_alone(done: int) -> None:
    if done % 50 == 0:
        _say(f"{done} requests have run alone")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of requests and faults (default %(default)s)")
    parser.add_argument("--requests", type=int, default=300, help="in all (default %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="that ask at once (default %(default)s)")
    parser.add_argument("--kill-every-s", type=float, default=2.0, help="mean time between kills (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
