"""What the servicer needs of a registry, wherever its entries are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from common.core.ids import BlockAttempt, WorkerLife
from common.core.registry import KvOutcome, Reconciliation
from common.core.work import KvHandle


class KvStore(Protocol):
    """Entries by attempt, under lease, fenced by incarnation. Every call is idempotent; leases are relative seconds.

    A store that cannot be reached, or that refuses to work, raises WireError(PEER_LOST).
    """

    async def publish(self, entries: Sequence[KvHandle]) -> list[KvOutcome]:
        """Record K/V that its owner retains; outcomes in order."""
        ...

    async def get(self, attempts: Sequence[BlockAttempt]) -> list[KvHandle]:
        """Entries found, in request order, each with the lease that is left."""
        ...

    async def renew(self, owner: WorkerLife, attempts: Sequence[BlockAttempt], lease_s: float) -> list[KvOutcome]:
        """Extend leases; none shrinks. Outcomes in order."""
        ...

    async def release(self, owner: WorkerLife, attempts: Sequence[BlockAttempt]) -> list[KvOutcome]:
        """Remove entries; outcomes in order."""
        ...

    async def reconcile(self, owner: WorkerLife, held: Sequence[BlockAttempt]) -> Reconciliation:
        """Compare what an owner says it holds with the entries here, and drop those it no longer holds."""
        ...

    async def fence(self, life: WorkerLife) -> int:
        """End that life and earlier ones of the same worker; returns the number of entries removed."""
        ...
