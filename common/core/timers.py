"""What is due when, without a clock: one entry per kind and name."""

from __future__ import annotations

import enum

from common.core.keyed_heap import KeyedHeap


class TimerKind(enum.IntEnum):
    """What a timer is about; the name it goes with is a request id, or a worker id for BACKOFF."""

    DEADLINE = 0
    LEASE = 1
    BACKOFF = 2


Timer = tuple[TimerKind, str]


class Timers:
    """Earliest first; setting a timer again moves it."""

    def __init__(self) -> None:
        self._heap: KeyedHeap[Timer, float] = KeyedHeap()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, kind: TimerKind, name: str, at_s: float) -> None:
        """Ring at `at_s`."""
        self._heap.push((kind, name), at_s)

    def cancel(self, kind: TimerKind, name: str) -> None:
        """Do not ring; fine if it was not set."""
        self._heap.discard((kind, name))

    def next_due(self) -> float | None:
        """When the earliest rings."""
        head = self._heap.peek()
        return None if head is None else head[1]

    def pop_due(self, now: float) -> Timer | None:
        """Take out the earliest one that is due, if any."""
        head = self._heap.peek()
        if head is None or head[1] > now:
            return None
        self._heap.discard(head[0])
        return head[0]
