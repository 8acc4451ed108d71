"""A priority queue whose entries can be removed by key: the scheduler's queues and its timers."""

from __future__ import annotations

import heapq
from typing import Any, Generic, Protocol, TypeVar


class Orderable(Protocol):
    """Anything with a total order."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether this sorts before `other`."""
        ...


K = TypeVar("K", bound=Orderable)
P = TypeVar("P", bound=Orderable)

_SLACK = 64


class KeyedHeap(Generic[K, P]):
    """Smallest priority first, ties by key. All operations are O(log n) amortised; memory is O(live entries)."""

    def __init__(self) -> None:
        self._live: dict[K, P] = {}
        self._heap: list[tuple[P, K]] = []

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: K) -> bool:
        return key in self._live

    def push(self, key: K, priority: P) -> None:
        """Add `key`, or move it to a new priority."""
        self._live[key] = priority
        heapq.heappush(self._heap, (priority, key))
        self._compact()

    def discard(self, key: K) -> bool:
        """Remove `key`; False when it was not there."""
        if self._live.pop(key, None) is None:
            return False
        self._compact()
        return True

    def peek(self) -> tuple[K, P] | None:
        """The first entry, left in place."""
        while self._heap:
            priority, key = self._heap[0]
            if self._live.get(key) == priority:
                return key, priority
            heapq.heappop(self._heap)
        return None

    def _compact(self) -> None:
        # Removed entries stay in the heap until they surface; rebuilding at twice the live size keeps memory flat.
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(priority, key) for key, priority in self._live.items()]
            heapq.heapify(self._heap)
