"""Time as a dependency: services read it from a `Clock`, tests turn it by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock; its zero means nothing, only differences count."""

    def now(self) -> float:
        """Seconds, never decreasing."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Return once `duration_s` seconds have passed on this clock."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment of this machine's life."""
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        """Sleep in real time."""
        await asyncio.sleep(duration_s)


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Seconds, as last set by `advance`."""
        return self._now_s

    async def sleep(self, duration_s: float) -> None:
        """Wait until `advance` has passed the wake-up time."""
        wake_s = self._now_s + duration_s
        if wake_s <= self._now_s:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = (wake_s, woken)
        self._sleepers.append(sleeper)
        try:
            await woken
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, duration_s: float) -> None:
        """Move time forward and wake everyone who is due."""
        assert duration_s >= 0, "a monotonic clock never goes back"
        self._now_s += duration_s
        for wake_s, woken in self._sleepers:
            if wake_s <= self._now_s and not woken.done():
                woken.set_result(None)
