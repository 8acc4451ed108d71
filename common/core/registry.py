"""Where K/V lies and until when: leases by relative time, fenced by incarnation. Metadata only; every call idempotent.

Mirrors `sangam.v1.KvRegistryService` (kv_registry.proto), batch by batch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from common.core.ids import BlockAttempt, WorkerId, WorkerLife
from common.core.incarnations import Incarnations
from common.core.keyed_heap import KeyedHeap
from common.core.unowned import Holding, Unowned
from common.core.work import KvHandle


class KvOutcome(enum.Enum):
    """How one entry of a batch ended."""

    OK = "ok"
    NOT_FOUND = "not_found"
    STALE_INCARNATION = "stale_incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Where an owner and the registry differ, both in order of attempt.

    `unknown`: held by the owner, not known here (publish again, or free). `removed`: known here, no longer held;
    dropped by the call.
    """

    unknown: tuple[BlockAttempt, ...]
    removed: tuple[BlockAttempt, ...]


class RegistryCore:
    """Entries by attempt. A lease counts from `now`, never shrinks, and an entry past it does not exist.

    A sign of a newer life of a worker ends the older ones: their entries go, and their calls are refused.
    """

    def __init__(self) -> None:
        self._entries: dict[BlockAttempt, KvHandle] = {}
        self._leases: KeyedHeap[BlockAttempt, float] = KeyedHeap()
        self._lease_ends_s: dict[BlockAttempt, float] = {}
        self._by_worker: dict[WorkerId, set[BlockAttempt]] = {}
        self._incarnations = Incarnations()

    def __len__(self) -> int:
        return len(self._entries)

    def publish(self, entries: Iterable[KvHandle], now: float) -> list[KvOutcome]:
        """Record K/V that its owner retains; `lease_s` of each is relative to `now`. Outcomes in order."""
        self.expire(now)
        return [self._publish(entry, now) for entry in entries]

    def get(self, attempts: Iterable[BlockAttempt], now: float) -> list[KvHandle]:
        """Entries found, in request order, each with the lease that is left."""
        self.expire(now)
        found = (self._entries.get(attempt) for attempt in attempts)
        return [replace(entry, lease_s=self._lease_ends_s[entry.attempt] - now) for entry in found if entry is not None]

    def renew(self, owner: WorkerLife, attempts: Iterable[BlockAttempt], lease_s: float, now: float) -> list[KvOutcome]:
        """Extend leases to `now + lease_s` where that is later. Outcomes in order."""
        self.expire(now)
        if not self._admit(owner):
            return [KvOutcome.STALE_INCARNATION for _ in attempts]
        return [self._renew(owner, attempt, now + lease_s) for attempt in attempts]

    def release(self, owner: WorkerLife, attempts: Iterable[BlockAttempt], now: float) -> list[KvOutcome]:
        """Remove entries of that owner; unknown ones are OK (already so)."""
        self.expire(now)
        if not self._admit(owner):
            return [KvOutcome.STALE_INCARNATION for _ in attempts]
        outcomes: list[KvOutcome] = []
        for attempt in attempts:
            if self._owned(owner, attempt):
                self._drop(attempt)
            outcomes.append(KvOutcome.OK)
        return outcomes

    def reconcile(self, owner: WorkerLife, held: Sequence[BlockAttempt], now: float) -> Reconciliation:
        """Compare what the owner says it holds with the entries here; drops those it no longer holds.

        To a life that is over, everything it holds is unknown.
        """
        self.expire(now)
        if not self._admit(owner):
            return Reconciliation(unknown=tuple(sorted(set(held))), removed=())
        known = set(self._by_worker.get(owner.worker_id, ()))
        removed = tuple(sorted(known - set(held)))
        for attempt in removed:
            self._drop(attempt)
        return Reconciliation(unknown=tuple(sorted(set(held) - known)), removed=removed)

    def fence(self, life: WorkerLife) -> int:
        """End that life and all earlier ones of the same worker; returns the number of entries removed."""
        self._incarnations.fence(life)
        return self._drop_until(life)

    def unowned(self, now: float) -> list[Unowned]:
        """Entries past their lease, which `expire` forgets, or left behind by their owner's end: none for long."""
        return [
            Unowned(holding=Holding.LEASES, name=f"entry of {attempt}, {why}")
            for attempt, entry in self._entries.items()
            if (why := self._why_unowned(entry, now))
        ]

    def _why_unowned(self, entry: KvHandle, now: float) -> str:
        if self._lease_ends_s[entry.attempt] <= now:
            return "past its lease"
        if self._incarnations.is_stale(entry.owner):
            return "of a life that is over"
        if entry.attempt not in self._by_worker.get(entry.owner.worker_id, ()):
            return "not known by its owner"
        return ""

    def expire(self, now: float) -> None:
        """Forget entries whose lease is over."""
        while (head := self._leases.peek()) is not None and head[1] <= now:
            self._drop(head[0])

    def next_expiry(self) -> float | None:
        """When the earliest lease ends."""
        head = self._leases.peek()
        return None if head is None else head[1]

    def _publish(self, entry: KvHandle, now: float) -> KvOutcome:
        if not self._admit(entry.owner):
            return KvOutcome.STALE_INCARNATION
        ends_s = now + entry.lease_s
        if self._owned(entry.owner, entry.attempt):
            ends_s = max(ends_s, self._lease_ends_s[entry.attempt])
        if ends_s <= now:
            return KvOutcome.NOT_FOUND
        if entry.attempt in self._entries:
            # The same attempt was placed again after a refusal: the latest owner is the one that has it.
            self._drop(entry.attempt)
        self._entries[entry.attempt] = entry
        self._by_worker.setdefault(entry.owner.worker_id, set()).add(entry.attempt)
        self._set_lease(entry.attempt, ends_s)
        return KvOutcome.OK

    def _renew(self, owner: WorkerLife, attempt: BlockAttempt, ends_s: float) -> KvOutcome:
        if not self._owned(owner, attempt):
            return KvOutcome.NOT_FOUND
        self._set_lease(attempt, max(ends_s, self._lease_ends_s[attempt]))
        return KvOutcome.OK

    def _admit(self, owner: WorkerLife) -> bool:
        """Whether that life may speak; if it is the newest so far, its earlier lives' entries go."""
        if self._incarnations.is_stale(owner):
            return False
        if self._incarnations.observe(owner):
            self._drop_until(WorkerLife(owner.worker_id, owner.incarnation - 1))
        return True

    def _owned(self, owner: WorkerLife, attempt: BlockAttempt) -> bool:
        entry = self._entries.get(attempt)
        return entry is not None and entry.owner == owner

    def _set_lease(self, attempt: BlockAttempt, ends_s: float) -> None:
        self._lease_ends_s[attempt] = ends_s
        self._leases.push(attempt, ends_s)

    def _drop_until(self, life: WorkerLife) -> int:
        attempts = self._by_worker.get(life.worker_id, set())
        old = [attempt for attempt in attempts if self._entries[attempt].owner.incarnation <= life.incarnation]
        for attempt in old:
            self._drop(attempt)
        return len(old)

    def _drop(self, attempt: BlockAttempt) -> None:
        entry = self._entries.pop(attempt)
        del self._lease_ends_s[attempt]
        self._leases.discard(attempt)
        attempts = self._by_worker[entry.owner.worker_id]
        attempts.discard(attempt)
        if not attempts:
            del self._by_worker[entry.owner.worker_id]
