"""Growing pauses between tries at something that may be down for long."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Doubles from `first_s` to `longest_s` seconds.

    `jitter` shortens each pause at random by up to a half: it keeps a fleet from knocking in step.
    """

    def __init__(self, *, first_s: float, longest_s: float, jitter: bool) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter

    def reset(self) -> None:
        """Start from the first pause again: the last try worked."""
        self._next_s = self._first_s

    def take(self) -> float:
        """This turn's pause in seconds; the next is longer."""
        pause_s, self._next_s = self._next_s, min(self._longest_s, 2 * self._next_s)
        return pause_s * random.uniform(0.5, 1.0) if self._jitter else pause_s

    async def wait(self) -> None:
        """Sleep for this turn's pause."""
        await asyncio.sleep(self.take())
