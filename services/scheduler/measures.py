"""What the scheduler measures: the core's view, sampled."""

from __future__ import annotations

from typing import NoReturn

from common.clock import Clock
from common.core.scheduler import SchedulerCore
from common.metrics.catalogue import REPLAY_DIVERGENCE

SAMPLE_INTERVAL_S = 0.5
"""Time between two samples of the core's view."""


class SchedulerMeasures:
    """Feeds the instruments from one core. Event loop only."""

    def __init__(self, core: SchedulerCore, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._divergences = 0
        REPLAY_DIVERGENCE.add(0)

    async def run(self) -> NoReturn:
        """Sample for ever; ends by cancellation."""
        while True:
            await self._clock.sleep(SAMPLE_INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        """Take the core's present state into the instruments."""
        view = self._core.view()
        REPLAY_DIVERGENCE.add(view.replay_divergences - self._divergences)
        self._divergences = view.replay_divergences
