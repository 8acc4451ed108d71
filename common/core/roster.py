"""Workers that may be given one kind of work, indexed so that the best one with room is found in O(log n)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Generic, Protocol, TypeVar

from common.core.cluster import WorkerSpec
from common.core.ids import WorkerId

Rank = tuple[float, ...]


class WorkerLoad(Protocol):
    """What placement may know of a worker; `WorkerAccount` and `WorkerView` both say it."""

    @property
    def spec(self) -> WorkerSpec:
        """What it registered."""
        ...

    @property
    def pages_free(self) -> int:
        """Pages not reserved."""
        ...

    @property
    def outstanding_prefill_tokens(self) -> int:
        """Canvas tokens of prefills placed there and not finished."""
        ...

    @property
    def live_blocks(self) -> int:
        """Prefill and decode calls there."""
        ...

    @property
    def length_sum_tokens(self) -> int:
        """Canvas tokens of those calls."""
        ...


W = TypeVar("W", bound=WorkerLoad)
NOBODY: frozenset[WorkerId] = frozenset()
_LAST: Rank = (float("inf"),)


class Roster(Generic[W]):
    """A tournament tree over workers in order of their ids.

    `room(worker)` is the longest canvas it can take now, in tokens (0: none); `rank(worker)` orders workers, smallest
    first, ties by id. Both are asked when the roster is made and again at `refresh`, which costs O(log n). `best` and
    `following` skip every subtree without room; they look at O(log n) workers unless many of the best ranked are full
    or barred. With `grouped`, the workers of each link domain also have a roster of their own.
    """

    def __init__(
        self, workers: Iterable[W], *, room: Callable[[W], int], rank: Callable[[W], Rank], grouped: bool = False
    ) -> None:
        self._workers = sorted(workers, key=lambda worker: worker.spec.life)
        self._slots = {worker.spec.life.worker_id: slot for slot, worker in enumerate(self._workers)}
        self._room_of, self._rank_of = room, rank
        self._leaves = 1 << max(0, len(self._workers) - 1).bit_length()
        self._room = [0] * (2 * self._leaves)
        self._rank: list[Rank] = [_LAST] * (2 * self._leaves)
        for slot in range(len(self._workers)):
            self._ask(slot)
        for node in range(self._leaves - 1, 0, -1):
            self._merge(node)
        self._groups: dict[str, Roster[W]] = {}
        if grouped:
            members: dict[str, list[W]] = {}
            for worker in self._workers:
                members.setdefault(worker.spec.link_domain, []).append(worker)
            self._groups = {name: Roster(those, room=room, rank=rank) for name, those in members.items()}

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, worker_id: WorkerId) -> bool:
        return worker_id in self._slots

    def refresh(self, worker_id: WorkerId) -> None:
        """That worker's room or rank may have changed."""
        slot = self._slots[worker_id]
        node = self._ask(slot) >> 1
        while node and self._merge(node):
            node >>= 1
        if self._groups:
            self._groups[self._workers[slot].spec.link_domain].refresh(worker_id)

    def group(self, domain: str) -> Roster[W] | None:
        """The roster of that link domain; None when nobody is there, or the roster is not grouped."""
        return self._groups.get(domain)

    def best(self, canvas_tokens: int, barred: Collection[WorkerId] = NOBODY) -> W | None:
        """The worker of smallest rank that has room for the canvas and is not barred."""
        best, found, pending = _LAST, -1, [1]
        room, rank, leaves = self._room, self._rank, self._leaves
        while pending:
            node = pending.pop()
            if room[node] < canvas_tokens or rank[node] >= best:
                continue
            if node < leaves:
                left = 2 * node
                # The more promising child is looked at first, so that the other is often not looked at.
                pending += (left, left + 1) if rank[left + 1] < rank[left] else (left + 1, left)
            elif not barred or self._workers[node - leaves].spec.life.worker_id not in barred:
                best, found = rank[node], node
        return None if found < 0 else self._workers[found - leaves]

    def following(
        self, worker_id: WorkerId | None, canvas_tokens: int, barred: Collection[WorkerId] = NOBODY
    ) -> W | None:
        """The next worker with room after `worker_id` in order of ids, around the circle (None: from the start)."""
        start = 0 if worker_id is None else self._slot_after(worker_id)
        found = self._first_from(start, canvas_tokens, barred)
        return found if found is not None or start == 0 else self._first_from(0, canvas_tokens, barred)

    def with_room(self, canvas_tokens: int, barred: Collection[WorkerId] = NOBODY) -> list[W]:
        """All workers that could take the canvas, by id. Looks at every worker."""
        rooms = self._room[self._leaves : self._leaves + len(self._workers)]
        return [
            worker
            for worker, room in zip(self._workers, rooms, strict=True)
            if room >= canvas_tokens and worker.spec.life.worker_id not in barred
        ]

    def has_room(self, worker_id: WorkerId, canvas_tokens: int) -> W | None:
        """That worker, if it is here and could take the canvas."""
        slot = self._slots.get(worker_id)
        return None if slot is None or self._room[self._leaves + slot] < canvas_tokens else self._workers[slot]

    def _ask(self, slot: int) -> int:
        worker, node = self._workers[slot], self._leaves + slot
        room = self._room_of(worker)
        self._room[node] = room
        self._rank[node] = (*self._rank_of(worker), slot) if room > 0 else _LAST
        return node

    def _merge(self, node: int) -> bool:
        """Recompute an inner node; True when it changed."""
        rooms, ranks, left, right = self._room, self._rank, 2 * node, 2 * node + 1
        room = max(rooms[left], rooms[right])
        rank = min(ranks[left], ranks[right])
        if room == rooms[node] and rank == ranks[node]:
            return False
        rooms[node], ranks[node] = room, rank
        return True

    def _slot_after(self, worker_id: WorkerId) -> int:
        slot = self._slots.get(worker_id)
        if slot is not None:
            return slot + 1
        # It has left: go on from where it would stand.
        return sum(worker.spec.life.worker_id < worker_id for worker in self._workers)

    def _first_from(self, start: int, canvas_tokens: int, barred: Collection[WorkerId]) -> W | None:
        pending = [(1, 0, self._leaves)]
        while pending:
            node, low, high = pending.pop()
            if high <= start or self._room[node] < canvas_tokens:
                continue
            if node < self._leaves:
                middle = (low + high) // 2
                pending += ((2 * node + 1, middle, high), (2 * node, low, middle))
            elif self._workers[low].spec.life.worker_id not in barred:
                return self._workers[low]
        return None
