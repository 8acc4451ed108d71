"""`make chaos`: a storm, then clients that go away; their tables, and exit code 1 when a promise was broken.

Everything random comes from the seed; what it falls on is up to the machine, so a run is repeated in kind, not to the
letter. What the cores did is, by `sangam replay`: a run with problems leaves its stories and logs behind.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.generation_input import GenerationInput
from common.random_checkpoint import build_random_checkpoint
from tests.chaos import disconnects, report
from tests.chaos.disconnects import DisconnectResult, disconnect_storm
from tests.chaos.faults import Mischief
from tests.chaos.progress import conclude, say
from tests.chaos.requests import mixed_requests
from tests.chaos.storm import StormPlan, StormResult, storm
from tests.chaos.wired_cluster import Fleet, wired_cluster
from tests.invariance.solo import SoloAnswer, solo_answers

KINDS = ("gateway", "scheduler", "prefill", "decode", "kv_store", "redis")
LONGEST_TOKENS = 448
REQUESTS_AFTER = 20
"""Asked after the disconnects; the first of the storm's requests."""


def main() -> int:
    """Run it; 0 when every promise was kept."""
    args = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="sangam-chaos-"))
    build_random_checkpoint(folder / "model")
    requests = mixed_requests(args.requests, seed=args.seed, longest_tokens=LONGEST_TOKENS)
    say(f"seed {args.seed}: {len(requests)} requests, each by itself first")
    solo = solo_answers(folder / "model", requests, on_answer=_tell_alone)
    stormed = _storm(args, folder, requests, solo)
    print(report.render(stormed), flush=True)
    left = _disconnects(args, folder, requests[:REQUESTS_AFTER])
    print(f"\n{disconnects.render(left)}", flush=True)
    broken = [*stormed.problems, *report.late(stormed), *disconnects.problems(left, solo[:REQUESTS_AFTER])]
    return conclude(broken, folder, again=f"make chaos SEED={args.seed}")


def _storm(
    args: argparse.Namespace, folder: Path, requests: Sequence[GenerationInput], solo: Sequence[SoloAnswer]
) -> StormResult:
    plan = StormPlan(
        fleet=Fleet(schedulers=2, prefill_workers=2, decode_workers=2, wired=("prefill-0", "decode-1")),
        mischief=Mischief(kinds=KINDS, kill_every_s=args.kill_every_s),
        clients=args.clients,
        seed=args.seed,
    )
    return asyncio.run(storm(plan, folder / "model", folder / "run" / "storm", requests, solo, say=say))


def _disconnects(args: argparse.Namespace, folder: Path, after: Sequence[GenerationInput]) -> DisconnectResult:
    fleet = Fleet(schedulers=1, prefill_workers=1, decode_workers=1, wired=())
    leaving = mixed_requests(args.disconnects, seed=args.seed + 1, longest_tokens=LONGEST_TOKENS)

    async def run() -> DisconnectResult:
        async with wired_cluster(fleet, folder / "model", folder / "run" / "disconnects", say=say) as wired:
            say(f"{len(leaving)} clients come and go away")
            return await disconnect_storm(wired.cluster, leaving, after, seed=args.seed)

    return asyncio.run(run())


def _tell_alone(done: int) -> None:
    if done % 50 == 0:
        say(f"{done} requests have run alone")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of requests and faults (default %(default)s)")
    parser.add_argument("--requests", type=int, default=300, help="in all (default %(default)s)")
    parser.add_argument("--clients", type=int, default=6, help="that ask at once (default %(default)s)")
    parser.add_argument("--kill-every-s", type=float, default=2.0, help="mean time between kills (default %(default)s)")
    parser.add_argument("--disconnects", type=int, default=100, help="clients that go away (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
