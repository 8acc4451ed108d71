"""The watch over what a service holds for nobody: shown as gauges, told to the log once, never a reason to die."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn

from common.clock import Clock
from common.core.unowned import Holding, Unowned
from common.lasting import Lasting
from common.metrics.catalogue import CONSERVATION_BROKEN, LEAKED_LEASES, LEAKED_PAGES, LEAKED_REQUESTS

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
"""Time between two looks."""

GRACE_S = 2.0
"""How long something must be held for nobody to count: parts of a service learn of an end one after the other."""

_GAUGES = {Holding.PAGES: LEAKED_PAGES, Holding.REQUESTS: LEAKED_REQUESTS, Holding.LEASES: LEAKED_LEASES}


class LeakWatch:
    """Looks at `unowned` at intervals; what stays there longer than `GRACE_S` has leaked. Event loop only.

    `check` is called while the service is at rest (it decides when) and asserts that its books add up; it may be None.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        unowned: Callable[[], Iterable[Unowned]],
        check: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._unowned = unowned
        self._check = check
        self._leaked: Lasting[tuple[Holding, str]] = Lasting(after_s=GRACE_S)
        self._problem = ""
        self._show(Counter(), broken=False)

    async def run(self) -> NoReturn:
        """Look for ever; ends by cancellation."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Compare what is held with what is owned, now."""
        held = {(found.holding, found.name): found for found in self._unowned()}
        for holding, name in self._leaked.look(held, self._clock.now()):
            log.error("leaked %s: %s", holding.value, name)
        counts: Counter[Holding] = Counter()
        for key in self._leaked.lasting:
            counts[held[key].holding] += held[key].count
        self._show(counts, broken=self._books_broken())

    def _books_broken(self) -> bool:
        """Whether the check fails; each new problem is told once."""
        try:
            if self._check is not None:
                self._check()
        except AssertionError as error:
            problem = str(error) or "an assertion of the check at rest"
            if problem != self._problem:
                log.error("the books do not add up: %s", problem, exc_info=error)
            self._problem = problem
            return True
        self._problem = ""
        return False

    @staticmethod
    def _show(counts: Counter[Holding], *, broken: bool) -> None:
        for holding, gauge in _GAUGES.items():
            gauge.show(counts[holding])
        CONSERVATION_BROKEN.show(int(broken))
