"""A cluster under load while it is sabotaged, and what its clients saw of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.generation_input import GenerationInput
from common.story.replay import replay
from tests.chaos.faults import Fault, FaultKind, Mischief, Saboteur
from tests.chaos.recovery import recoveries
from tests.chaos.settling import Leaks, settle
from tests.chaos.watched_request import WatchedRequest
from tests.chaos.wired_cluster import Fleet, WiredCluster, wired_cluster
from tests.invariance.solo import SoloAnswer

REQUEST_TIMEOUT_S = 240.0
"""Longest that a client waits; every request ends long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """What a storm is made of; `clients` ask at once, one request after the other."""

    fleet: Fleet
    mischief: Mischief
    clients: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StormResult:
    """What came of it. `problems` are empty when every promise was kept; recovery times are judged by the reader."""

    requests: int
    finished: int
    tokens: int
    retried_blocks: int
    reconnects: int
    faults: tuple[Fault, ...]
    recovery_s: dict[FaultKind, list[float]]
    leaks: Leaks
    replayed_events: int
    restarts: int
    elapsed_s: float
    problems: tuple[str, ...]


async def storm(
    plan: StormPlan,
    model_dir: Path,
    run_dir: Path,
    wanted: Sequence[GenerationInput],
    solo: Sequence[SoloAnswer],
    *,
    say: Callable[[str], None],
) -> StormResult:
    """Start the fleet in `run_dir`, ask everything under sabotage, let it settle, compare, replay the stories."""
    requests = [WatchedRequest(each, f"chaos-{secrets.token_hex(8)}") for each in wanted]
    async with wired_cluster(plan.fleet, model_dir, run_dir, say=say) as wired:
        saboteur = Saboteur(wired.cluster, wired.wires, plan.mischief, seed=plan.seed, say=say)
        elapsed_s = await _ask_all(requests, plan, wired, saboteur, say)
        leaks = await settle(wired.cluster)
        restarts = sum(wired.cluster.restarts.values())
    events, partings = _replay_all(run_dir / "stories")
    differences = [line for request, right in zip(requests, solo, strict=True) for line in request.differences(right)]
    return StormResult(
        requests=len(requests),
        finished=sum(request.finished is not None for request in requests),
        tokens=sum(len(request.token_ids) for request in requests),
        retried_blocks=sum(request.retried_blocks for request in requests),
        reconnects=sum(request.calls - 1 for request in requests),
        faults=tuple(saboteur.faults),
        recovery_s=recoveries(requests, saboteur.faults),
        leaks=leaks,
        replayed_events=events,
        restarts=restarts,
        elapsed_s=elapsed_s,
        problems=(*differences, *partings, *([f"left over: {leaks}"] if leaks.total else [])),
    )


async def _ask_all(
    requests: Sequence[WatchedRequest],
    plan: StormPlan,
    wired: WiredCluster,
    saboteur: Saboteur,
    say: Callable[[str], None],
) -> float:
    """Every request to its end, under sabotage; the seconds that it took."""
    started_s = asyncio.get_running_loop().time()
    waiting = iter(requests)
    ended = 0

    async def client() -> None:
        nonlocal ended
        for request in waiting:
            await request.run(wired.cluster.gateway_address, timeout_s=REQUEST_TIMEOUT_S)
            ended += 1
            if request.problem or ended % 25 == 0:
                say(f"{ended} of {len(requests)} requests have ended {request.problem}")

    async with asyncio.TaskGroup() as tasks:
        trouble = tasks.create_task(saboteur.run())
        async with asyncio.TaskGroup() as clients:
            for _ in range(plan.clients):
                clients.create_task(client())
        trouble.cancel()
    return asyncio.get_running_loop().time() - started_s


def _replay_all(story_dir: Path) -> tuple[int, list[str]]:
    """Events in all stories, and a line for each story that does not end as it was written."""
    events, partings = 0, []
    for path in sorted(story_dir.iterdir()):
        told = replay(path)
        events += told.events
        if told.parting is not None or told.error:
            partings.append(f"sangam replay {path}: {told.error or f'parts at event {told.events}'}")
    return events, partings
