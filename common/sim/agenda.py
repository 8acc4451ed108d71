"""The virtual clock: what happens next, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Actions in order of their time; those of equal time in the order they were put down."""

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time_s: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action(*args)` at `time_s`, which is not in the past."""
        assert time_s >= self.now, (time_s, self.now)
        self._sequence += 1
        heapq.heappush(self._entries, (time_s, self._sequence, action, args))

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action(*args)` in `delay_s` seconds."""
        self.at(self.now + delay_s, action, *args)

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is left."""
        if not self._entries:
            return False
        self.now, _, action, args = heapq.heappop(self._entries)
        action(*args)
        return True
