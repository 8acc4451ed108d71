"""Which store a registry has, and what keeps it going: expiry for the one in memory, a watch over the one in Redis."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.clock import Clock
from common.config import KvStoreConfig
from common.core.unowned import Unowned
from common.errors import WireError
from common.redis_address import RedisAddress
from common.story.cores import REGISTRY
from common.story.writer import open_story
from services.kv_store.janitor import sweep_forever
from services.kv_store.lease_audit import LeaseAudit
from services.kv_store.memory_store import MemoryStore
from services.kv_store.store import KvStore

if TYPE_CHECKING:
    from services.kv_store.redis_store import RedisStore

WATCH_INTERVAL_S = 0.5
"""Time between two looks at Redis."""

_log = logging.getLogger(__name__)

ReportReady = Callable[[bool], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A store, and the upkeep that must run while it is used.

    `upkeep(report)` runs until cancelled and awaits `report(ready)` at first and whenever readiness changes. `unowned`
    says what the store keeps for nobody.
    """

    store: KvStore
    upkeep: Callable[[ReportReady], Coroutine[Any, Any, None]]
    unowned: Callable[[], Sequence[Unowned]]


@asynccontextmanager
async def open_backend(config: KvStoreConfig, clock: Clock) -> AsyncIterator[Backend]:
    """The backend that the settings ask for; closes its connections at the end.

    Raises ConfigError when a story is asked for and cannot be written. A registry in Redis runs no core and has none.
    """
    registry = config.registry
    if registry == "memory":
        story = open_story(config.story_dir, core=REGISTRY, service="kv_store", config=None)
        try:
            yield _memory_backend(MemoryStore(clock, story), clock)
        finally:
            story.close()
        return
    # Only a registry in Redis needs the redis package.
    from services.kv_store.redis_store import RedisStore

    store = RedisStore(RedisAddress.parse(registry))
    try:
        yield _redis_backend(store, clock, registry)
    finally:
        await store.aclose()


def _memory_backend(store: MemoryStore, clock: Clock) -> Backend:
    async def upkeep(report: ReportReady) -> None:
        await report(True)
        await sweep_forever(store, clock)

    return Backend(store=store, upkeep=upkeep, unowned=store.unowned)


def _redis_backend(store: RedisStore, clock: Clock, url: str) -> Backend:
    audit = LeaseAudit(store)

    async def upkeep(report: ReportReady) -> None:
        ready: bool | None = None
        while True:
            problem = await _problem_of(store)
            if ready is not (problem is None):
                ready = problem is None
                await report(ready)
                if problem is None:
                    _log.info("the registry is in %s", url)
                else:
                    _log.error("the registry in %s does not answer (%s); trying again until it does", url, problem)
            if ready:
                await audit.look()
            else:
                audit.forget()
            await clock.sleep(WATCH_INTERVAL_S)

    return Backend(store=store, upkeep=upkeep, unowned=audit.unowned)


async def _problem_of(store: RedisStore) -> str | None:
    """Why Redis cannot be used now, in one line; None when it can."""
    try:
        await store.check()
    except WireError as error:
        return " ".join(str(error.__cause__).split())
    return None
