"""Waits until a cluster that was stormed is whole and idle, and counts what it still holds for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from common.cli.cluster import Cluster
from common.cli.cluster_metrics import WATCHED, fetch_all, total
from common.cli.status import fetch_state, unfree_pages
from common.errors import WireError
from common.metrics.readings import Reading
from sangam.v1 import scheduler_pb2

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """What is left when nobody asks for anything: all 0 in a sound cluster.

    Pages, leases and requests by the scheduler's ledger, the workers' reports and every service's own gauges, whichever
    says more. `missing` services do not answer, or have not come back; `broken_books`: services whose books do not add
    up. `divergences`: tokens that differed when a block was repeated, as far as who saw them lives.
    """

    pages: int
    leases: int
    requests: int
    missing: int
    broken_books: int
    divergences: int

    @property
    def total(self) -> int:
        """Everything that should not be."""
        return self.pages + self.leases + self.requests + self.missing + self.broken_books + self.divergences

    def __str__(self) -> str:
        """For a table."""
        return f"{self.pages}, {self.leases}, {self.requests}"


async def settle(cluster: Cluster) -> Leaks:
    """Return as soon as nothing is left, else what is left after `PATIENCE_S`."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + PATIENCE_S
    leaks = await _look(cluster)
    while leaks.total and loop.time() < ends_s:
        await asyncio.sleep(0.2)
        leaks = await _look(cluster)
    return leaks


async def _look(cluster: Cluster) -> Leaks:
    try:
        state = await fetch_state(cluster.scheduler_address)
    except WireError:  # it is between two lives
        state = scheduler_pb2.GetClusterStateResponse()
    services = {name: address for name, address in cluster.addresses.items() if name != "redis"}
    readings = await fetch_all(services)
    found = [read for read in readings.values() if read is not None]
    gauges = {instrument.about.name: _sum(found, instrument.about.name) for instrument in WATCHED}
    return Leaks(
        pages=max(gauges["sangam_leaked_pages"], sum(unfree_pages(worker) for worker in state.workers)),
        leases=max(gauges["sangam_leaked_leases"], sum(worker.report.retained_blocks for worker in state.workers)),
        requests=max(gauges["sangam_leaked_requests"], state.running_requests),
        missing=cluster.config.workers - len(state.workers) + len(readings) - len(found),
        broken_books=gauges["sangam_conservation_broken"],
        divergences=gauges["sangam_replay_divergence_total"],
    )


def _sum(services: Sequence[list[Reading]], name: str) -> int:
    return round(sum(total(readings, name) for readings in services))
