"""Blocks that wait for a prefill: ordered within a tenant, shared fairly between tenants."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from common.core.ids import RequestId
from common.core.keyed_heap import KeyedHeap
from common.core.roster import Rank

Age = tuple[float, RequestId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One waiting block. `rank` orders blocks of the tenant (smallest first), ties by `age` (submission, id)."""

    request_id: RequestId
    tenant: str
    canvas_tokens: int
    rank: Rank
    age: Age
    since_s: float


class TenantLine:
    """The waiting blocks of one tenant: by rank, but one that has waited `max_wait_s` goes before everything younger.

    Bound: from then on the block waits only for older requests' blocks, whatever ranks arrive later. Where rank is age
    the rule changes nothing. Each operation is O(log n) amortised.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._ranked: KeyedHeap[RequestId, tuple[Rank, Age]] = KeyedHeap()
        self._patient: KeyedHeap[RequestId, float] = KeyedHeap()
        self._overdue: KeyedHeap[RequestId, Age] = KeyedHeap()
        self._ages: dict[RequestId, Age] = {}

    def __len__(self) -> int:
        return len(self._ranked)

    def push(self, waiter: Waiter) -> None:
        """Join the line."""
        self._ranked.push(waiter.request_id, (waiter.rank, waiter.age))
        self._patient.push(waiter.request_id, waiter.since_s + self._max_wait_s)
        self._ages[waiter.request_id] = waiter.age

    def discard(self, request_id: RequestId) -> None:
        """Leave the line."""
        self._ranked.discard(request_id)
        if not self._patient.discard(request_id):
            self._overdue.discard(request_id)
        self._ages.pop(request_id, None)

    def head(self, now: float) -> RequestId | None:
        """Who goes next."""
        while (due := self._patient.peek()) is not None and due[1] <= now:
            self._patient.discard(due[0])
            self._overdue.push(due[0], self._ages[due[0]])
        first, overdue = self._ranked.peek(), self._overdue.peek()
        if first is None or overdue is None:
            return None if first is None else first[0]
        return overdue[0] if overdue[1] < self._ages[first[0]] else first[0]


@dataclass(slots=True, kw_only=True)
class _Share:
    """A tenant that has something waiting: its line, its quantum, and what is left of it."""

    line: TenantLine
    quantum_tokens: int
    deficit_tokens: int = 0
    granted: bool = False


class WaitingLine:
    """Deficit round robin in tokens between tenants (Shreedhar and Varghese, 1995), `TenantLine` order within each.

    A tenant at its turn gets `quantum_tokens` times its weight (1 unless `weights` says else) and places blocks while
    their canvases fit what it has; the rest stays with it until nothing of it waits. Bound: between tenants that always
    have something waiting, tokens placed per unit of weight differ by at most one quantum plus one largest canvas
    each. The head is strict: while it cannot be placed, nobody passes it.
    """

    def __init__(self, *, quantum_tokens: int, weights: Mapping[str, int], max_wait_s: float) -> None:
        self._quantum_tokens, self._weights, self._max_wait_s = quantum_tokens, weights, max_wait_s
        self._waiters: dict[RequestId, Waiter] = {}
        self._shares: OrderedDict[str, _Share] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiters

    def push(self, waiter: Waiter) -> None:
        """Join the line; must not be in it."""
        assert waiter.request_id not in self._waiters, waiter.request_id
        self._waiters[waiter.request_id] = waiter
        share = self._shares.get(waiter.tenant)
        if share is None:
            quantum_tokens = self._quantum_tokens * self._weights.get(waiter.tenant, 1)
            share = _Share(line=TenantLine(self._max_wait_s), quantum_tokens=quantum_tokens)
            self._shares[waiter.tenant] = share
        share.line.push(waiter)

    def discard(self, request_id: RequestId, *, placed: bool = False) -> bool:
        """Leave the line (`placed`: the tenant pays for the canvas); False when it was not in it."""
        waiter = self._waiters.pop(request_id, None)
        if waiter is None:
            return False
        share = self._shares[waiter.tenant]
        if placed:
            share.deficit_tokens = max(0, share.deficit_tokens - waiter.canvas_tokens)
        share.line.discard(request_id)
        if not len(share.line):
            del self._shares[waiter.tenant]
        return True

    def head(self, now: float) -> RequestId | None:
        """Who goes next; asking again without a change gives the same answer."""
        while self._shares:
            tenant, share = next(iter(self._shares.items()))
            request_id = share.line.head(now)
            assert request_id is not None, f"{tenant!r} has an empty line"
            # Nobody to share with: no account is kept.
            alone = len(self._shares) == 1
            if alone or self._waiters[request_id].canvas_tokens <= share.deficit_tokens:
                return request_id
            if share.granted:
                share.granted = False
                self._shares.move_to_end(tenant)
            else:
                share.granted = True
                share.deficit_tokens += share.quantum_tokens
        return None
