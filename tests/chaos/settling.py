"""Waits until a cluster that was stormed is whole and idle, and counts what it still holds for nobody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from common.cli.cluster import Cluster
from common.cli.status import fetch_state, unfree_pages
from common.errors import WireError
from sangam.v1 import scheduler_pb2

PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """What is left when nobody asks for anything: all 0 in a sound cluster. `missing_workers` did not come back."""

    pages: int
    leases: int
    requests: int
    missing_workers: int
    replay_divergences: int = 0

    @property
    def total(self) -> int:
        """Everything that should not be."""
        return self.pages + self.leases + self.requests + self.missing_workers


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
    return Leaks(
        pages=sum(unfree_pages(worker) for worker in state.workers),
        leases=sum(worker.report.retained_blocks for worker in state.workers),
        requests=state.running_requests,
        missing_workers=cluster.config.workers - len(state.workers),
        replay_divergences=state.replay_divergences,
    )
