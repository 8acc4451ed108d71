"""The registry in this process' memory: `RegistryCore` under a clock. A restart forgets; owners reconcile."""

from __future__ import annotations

from collections.abc import Sequence

from common.clock import Clock
from common.core.ids import BlockAttempt, WorkerLife
from common.core.registry import KvOutcome, Reconciliation, RegistryCore
from common.core.work import KvHandle


class MemoryStore:
    """A `KvStore`. Its calls never wait, so each is atomic in its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._core = RegistryCore()

    def __len__(self) -> int:
        """Entries in memory, expired ones included until someone looks."""
        return len(self._core)

    async def publish(self, entries: Sequence[KvHandle]) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._core.publish(entries, self._clock.now())

    async def get(self, attempts: Sequence[BlockAttempt]) -> list[KvHandle]:
        """See `KvStore`."""
        return self._core.get(attempts, self._clock.now())

    async def renew(self, owner: WorkerLife, attempts: Sequence[BlockAttempt], lease_s: float) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._core.renew(owner, attempts, lease_s, self._clock.now())

    async def release(self, owner: WorkerLife, attempts: Sequence[BlockAttempt]) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._core.release(owner, attempts, self._clock.now())

    async def reconcile(self, owner: WorkerLife, held: Sequence[BlockAttempt]) -> Reconciliation:
        """See `KvStore`."""
        return self._core.reconcile(owner, held, self._clock.now())

    async def fence(self, life: WorkerLife) -> int:
        """See `KvStore`."""
        return self._core.fence(life)

    async def expire(self) -> None:
        """Forget entries whose lease is over."""
        self._core.expire(self._clock.now())
