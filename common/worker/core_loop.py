"""The one place where events go into the worker core and its effects come out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from common.clock import Clock
from common.core.worker import WorkerCore
from common.core.worker_effects import WorkerEffect
from common.core.worker_events import DecodeRequested, PrefillRequested, WorkerEvent, WorkerTick
from common.errors import Reason, WireError

IDLE_CHECK_DELAY_S = 0.25
"""How long a worker must have rested before it proves that it owes nothing."""


class CoreLoop:
    """Feeds a `WorkerCore` in order and wakes it when it asks to be. Event loop only.

    `perform` carries out one effect and must not block; it may feed further events, which wait their turn. Whatever
    `handle` or `perform` raises is a bug: it goes to `on_bug`, and the core is never called again (its state may be
    half changed).
    """

    def __init__(
        self,
        core: WorkerCore,
        *,
        clock: Clock,
        perform: Callable[[WorkerEffect], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._clock = clock
        self._perform = perform
        self._on_bug = on_bug
        self._events: deque[WorkerEvent] = deque()
        self._busy = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, event: WorkerEvent) -> None:
        """Handle `event` and everything that follows from it."""
        self._events.append(event)
        if not self._busy:
            self._turn()

    def request(self, event: PrefillRequested | DecodeRequested) -> None:
        """Handle a call that the core may refuse: raises its `WireError`, and then nothing has changed."""
        assert not self._busy, "calls come from the network, never from an effect"
        if self._stopped:
            raise WireError(Reason.WORKER_DRAINING, "this worker has ended")
        refusals: list[WireError] = []
        self._events.append(event)
        self._turn(refusals)
        if refusals:
            raise refusals[0]

    def stop(self) -> None:
        """Handle nothing more."""
        self._stopped = True
        self._disarm()

    def _turn(self, refusals: list[WireError] | None = None) -> None:
        """Handle what is pending, in order; a refusal is noted in `refusals`, or is a bug without them."""
        self._busy = True
        try:
            while self._events and not self._stopped:
                self._handle(self._events.popleft(), refusals)
            self._arm()
        except Exception as bug:
            self.stop()
            self._on_bug(bug)
        finally:
            self._busy = False

    def _handle(self, event: WorkerEvent, refusals: list[WireError] | None) -> None:
        try:
            effects = self._core.handle(event, self._clock.now())
        except WireError as refusal:
            if refusals is None:
                raise
            refusals.append(refusal)
            return
        for effect in effects:
            self._perform(effect)

    def _arm(self) -> None:
        """Set the timer for the core's next wish; when it has none and rests, check that nothing has leaked."""
        self._disarm()
        if self._stopped:
            return
        wakeup = self._core.next_wakeup()
        if wakeup is not None:
            delay_s = max(0.0, wakeup - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.feed, WorkerTick())
        elif self._core.view().idle:
            # Later: between two blocks of a lone request the worker is idle too, and its check would be waited for.
            self._timer = asyncio.get_running_loop().call_later(IDLE_CHECK_DELAY_S, self._check_idle)

    def _check_idle(self) -> None:
        try:
            self._core.check_conservation()
        except Exception as bug:
            self.stop()
            self._on_bug(bug)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
