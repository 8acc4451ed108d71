"""Makes stories of real cores for the tests: random lives of a scheduler, a worker, a registry."""

from __future__ import annotations

import functools
import random
from contextlib import closing
from pathlib import Path

from common.core.effects import SchedulerEffect
from common.core.events import SchedulerEvent
from common.core.ids import Role, ServingMode, WorkerId, WorkerLife
from common.core.registry import RegistryCore
from common.core.registry_calls import (
    Fence,
    Get,
    Publish,
    Reconcile,
    RegistryCall,
    Release,
    Renew,
    answer,
)
from common.core.scheduler import SchedulerCore
from common.core.worker import WorkerCore
from common.core.worker_events import IterationCompleted, PrefillRequested, WorkCancelled, WorkerTick
from common.story.cores import REGISTRY, SCHEDULER, WORKER
from common.story.writer import StoryWriter
from tests.core.random_cluster import RandomCluster
from tests.core.worker_work import attempt, handle_of, step, work, worker_config


class _Recorded(SchedulerCore):
    """A core whose events are told to a story."""

    def __init__(self, core: SchedulerCore, story: StoryWriter) -> None:
        self.__dict__ = core.__dict__
        self._recorded = story.recorded(super().handle)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerEffect]:
        return self._recorded(event, now)


def scheduler_story(path: Path, *, seed: int = 1, mode: ServingMode = ServingMode.HYBRID, happenings: int = 150) -> int:
    """A scheduler's life, with refusals, retries and lost workers; returns the number of refusals in it."""
    cluster = RandomCluster(mode, random.Random(seed))
    core = cluster.oracle.core
    with closing(StoryWriter(path, core=SCHEDULER, service="scheduler", config=cluster.oracle.config)) as story:
        cluster.oracle.core = _Recorded(core, story)
        cluster.run(happenings)
        cluster.rest()
    return cluster.oracle.refusals


def worker_story(path: Path) -> None:
    """A prefill worker that runs a block, keeps its K/V until the lease ends, and loses another to a cancel."""
    config = worker_config(Role.PREFILL)
    kept, dropped = work("kept"), work("dropped")
    first = step(0, {0: 5})
    with closing(StoryWriter(path, core=WORKER, service="prefill-0", config=config)) as story:
        handle = story.recorded(WorkerCore(config).handle)
        handle(PrefillRequested(work=kept), 1.0)
        handle(PrefillRequested(work=dropped), 1.1)
        handle(WorkCancelled(attempt=dropped.attempt), 1.2)
        handle(IterationCompleted(iteration=1, deltas=((kept.attempt, first),), duration_s=0.1), 1.3)
        handle(WorkerTick(), 1.3 + config.kv_lease_s)


def registry_story(path: Path) -> None:
    """Every call of a registry, with a lease that runs out."""
    core = RegistryCore()
    one, two = handle_of(work("one")), handle_of(work("two"))
    life = WorkerLife(WorkerId("p0"), 1)
    calls: list[tuple[RegistryCall, float]] = [
        (Publish(entries=(one, two)), 0.0),
        (Get(attempts=(one.attempt, attempt("nobody's"))), 1.0),
        (Renew(owner=life, attempts=(one.attempt,), lease_s=60.0), 2.0),
        (Release(owner=life, attempts=(two.attempt,)), 3.0),
        (Reconcile(owner=life, held=(two.attempt,)), 4.0),
        (Publish(entries=(two,)), 5.0),
        (Fence(life=life), 36.0),
        (Publish(entries=(one,)), 37.0),
    ]

    handle = functools.partial(answer, core)
    with closing(StoryWriter(path, core=REGISTRY, service="kv_store", config=None)) as story:
        for call, now in calls:
            story.recorded(handle)(call, now)
