"""`make soak`: a cluster at 70 % of what it can do, for MINUTES: errors, and each process' memory minute by minute.

Capacity is measured first: as many requests as possible with a fixed number of clients. Exit code 1 when a request
failed, or when a process grew or shrank by more than 5 % after its third minute.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.cli.cluster import Cluster
from common.cli.table import render_table
from common.core.ids import ServingMode
from common.random_checkpoint import build_random_checkpoint
from tests.chaos.progress import conclude, say
from tests.chaos.requests import mixed_requests
from tests.chaos.settling import Leaks, settle
from tests.chaos.watched_request import WatchedRequest
from tests.integration.cluster_help import running_cluster

LOAD = 0.7
"""Share of the measured capacity."""
CAPACITY_CLIENTS = 8
WARM_MINUTES = 3
"""Caches and pools have filled by then."""
FLAT_WITHIN = 0.05
REQUEST_TIMEOUT_S = 120.0
LONGEST_TOKENS = 192
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """`rss_bytes` of each process by name: at the start, then after each minute. `problems`: a line for each error."""

    capacity_per_s: float
    asked: int
    finished: int
    rss_bytes: dict[str, list[int]]
    leaks: Leaks
    restarts: int
    problems: tuple[str, ...]


class Load:
    """Asks a cluster for ever different requests."""

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        self.asked: list[WatchedRequest] = []
        self._cluster = cluster
        self._wanted = itertools.cycle(mixed_requests(200, seed=seed, longest_tokens=LONGEST_TOKENS))
        self._choose = random.Random(seed)

    async def measure_capacity(self, last_s: float) -> float:
        """Requests a second that are answered when `CAPACITY_CLIENTS` ask one after the other."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        before = len(self.asked)

        async def client() -> None:
            while loop.time() < started_s + last_s:
                await self._ask()

        await asyncio.gather(*(client() for _ in range(CAPACITY_CLIENTS)))
        return (len(self.asked) - before) / (loop.time() - started_s)

    async def run(self, per_s: float) -> None:
        """New requests at random moments, `per_s` of them in the mean, whatever becomes of them, until cancelled.

        Cancelling waits for nothing: requests in flight are given up.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._choose.expovariate(per_s))
                tasks.create_task(self._ask())

    async def _ask(self) -> None:
        request = WatchedRequest(next(self._wanted), f"soak-{len(self.asked)}")
        self.asked.append(request)
        await request.run(self._cluster.gateway_address, timeout_s=REQUEST_TIMEOUT_S)


async def soak(model_dir: Path, run_dir: Path, *, minutes: int, capacity_s: float, seed: int) -> SoakResult:
    """Measure, load, look at each process once a minute, settle."""
    async with running_cluster(
        model_dir, run_dir, mode=ServingMode.HYBRID, prefill_workers=1, decode_workers=2, log_level="warning"
    ) as cluster:
        load = Load(cluster, seed=seed)
        capacity_per_s = await load.measure_capacity(capacity_s)
        say(f"capacity: {capacity_per_s:.2f} requests/s; {minutes} minutes at {LOAD:.0%} of it")
        rss_bytes = {name: [resident_bytes(pid)] for name, pid in cluster.processes.items()}
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run(LOAD * capacity_per_s))
            for minute in range(1, minutes + 1):
                await asyncio.sleep(MINUTE_S)
                for name, pid in cluster.processes.items():
                    rss_bytes[name].append(resident_bytes(pid))
                say(f"minute {minute}: {len(load.asked)} requests asked")
            in_flight = [request for request in load.asked if request.finished is None]
            running.cancel()
        return SoakResult(
            capacity_per_s=capacity_per_s,
            asked=len(load.asked),
            finished=sum(request.finished is not None for request in load.asked),
            rss_bytes=rss_bytes,
            leaks=await settle(cluster),
            restarts=sum(cluster.restarts.values()),
            problems=tuple(_problems(load.asked, in_flight)),
        )


def _problems(asked: Sequence[WatchedRequest], in_flight: Sequence[WatchedRequest]) -> list[str]:
    """Failures, those excepted that were given up when the time was over."""
    return [f"{each.request_id}: {each.problem}" for each in asked if each.problem and each not in in_flight]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def drift(rss_bytes: Sequence[int]) -> float | None:
    """Largest distance from the value at the end of minute `WARM_MINUTES`, as a share; None before there is one."""
    settled = rss_bytes[WARM_MINUTES:]
    return max(abs(value - settled[0]) / settled[0] for value in settled) if len(settled) > 1 else None


def render(result: SoakResult) -> str:
    """Memory by process and minute, then the rest."""
    minutes = len(next(iter(result.rss_bytes.values())))
    header = ("RSS, MiB", *(f"min {minute}" for minute in range(minutes)), f"drift after min {WARM_MINUTES}")
    rows = []
    for name, values in result.rss_bytes.items():
        share = drift(values)
        rows.append((name, *(f"{value / 2**20:.0f}" for value in values), "-" if share is None else f"{share:.1%}"))
    facts = [
        ("capacity, requests/s", f"{result.capacity_per_s:.2f}"),
        ("requests asked, finished", f"{result.asked}, {result.finished}"),
        ("requests failed", str(len(result.problems))),
        ("processes restarted", str(result.restarts)),
        ("leaked pages, leases, requests", str(result.leaks)),
    ]
    return f"{render_table(header, rows)}\n\n{render_table(('what', 'seen'), facts)}"


def broken_promises(result: SoakResult) -> list[str]:
    """A line for each."""
    drifts = {name: drift(values) for name, values in result.rss_bytes.items()}
    unsteady = {name: share for name, share in drifts.items() if share is not None and share > FLAT_WITHIN}
    grown = [f"{name}: memory drifted by {share:.1%}" for name, share in unsteady.items()]
    left = [f"left over: {result.leaks}"] if result.leaks.total else []
    restarted = [f"{result.restarts} processes were restarted"] if result.restarts else []
    return [*result.problems, *grown, *left, *restarted]


def main() -> int:
    """Run it; 0 when every promise was kept."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=15, help="how long (default %(default)s)")
    parser.add_argument("--capacity-s", type=float, default=20.0, help="time to measure capacity (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default %(default)s)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sangam-soak-"))
    build_random_checkpoint(folder / "model")
    say(f"seed {args.seed}: starting, then {args.capacity_s:g} s of measuring capacity")
    result = asyncio.run(
        soak(folder / "model", folder / "run", minutes=args.minutes, capacity_s=args.capacity_s, seed=args.seed)
    )
    print(render(result))
    return conclude(broken_promises(result), folder, again=f"make soak MINUTES={args.minutes}")


if __name__ == "__main__":
    sys.exit(main())
