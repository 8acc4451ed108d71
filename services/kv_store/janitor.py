"""Forgets expired entries in memory that nobody asks for again, so that a registry of dead owners does not grow."""

from __future__ import annotations

from typing import NoReturn

from common.clock import Clock
from services.kv_store.memory_store import MemoryStore

SWEEP_INTERVAL_S = 1.0


async def sweep_forever(store: MemoryStore, clock: Clock) -> NoReturn:
    """Expire leases once per SWEEP_INTERVAL_S, until cancelled."""
    while True:
        await clock.sleep(SWEEP_INTERVAL_S)
        await store.expire()
