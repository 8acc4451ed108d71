"""The one place where events go into the worker core and its effects come out.

Two threads meet here. Everything from outside comes in on the event loop. A decode worker handles a forward's outcome
on the forward thread itself, which gets the next forward as the answer: a hop to the loop and back would cost more than
a small model's forward, and a busy loop would leave the device idle. A lock makes each event one step for both.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common.clock import Clock
from common.core.defaults import DEFAULT_QUICK_STEPS_WAIT_S, DEFAULT_STREAM_INTERVAL_S
from common.core.ids import BlockAttempt
from common.core.unowned import Unowned
from common.core.worker import WorkerCore
from common.core.worker_effects import (
    AbortFetch,
    CloseBlock,
    ForgetKv,
    OpenBlock,
    Report,
    RunIteration,
    SendStep,
    WorkerEffect,
)
from common.core.worker_events import (
    DecodeRequested,
    IterationCompleted,
    PrefillRequested,
    WorkerEvent,
    WorkerTick,
)
from common.core.worker_view import WorkerView
from common.errors import Reason, WireError
from common.story.writer import UNTOLD, Story
from common.worker.forward_thread import ForwardJob


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreHoldings:
    """What the core holds at one moment: `awaited` are blocks `here` with callers, `offered` has K/V under lease."""

    unowned: tuple[Unowned, ...]
    here: frozenset[BlockAttempt]
    awaited: frozenset[BlockAttempt]
    offered: frozenset[BlockAttempt]


class CoreLoop:
    """Feeds a `WorkerCore` in order and wakes it when it asks to be. Event loop only, but for `complete`.

    `perform` carries out one effect, and `submit` takes a forward with the blocks to open and close before it; both run
    on the event loop in the order in which the core asked, must not block, and may feed further events, which wait
    their turn. Only the forwards that `complete` returns overtake: what else it leads to is performed soon after;
    steps and reports of quick forwards, which no one waits for, within `DEFAULT_QUICK_STEPS_WAIT_S`.

    Whatever `handle` or `perform` raises is a bug: it goes to `on_bug` (or is raised by `complete`), and the core is
    never called again (its state may be half changed).
    """

    def __init__(
        self,
        core: WorkerCore,
        *,
        clock: Clock,
        perform: Callable[[WorkerEffect], None],
        submit: Callable[[ForwardJob], None],
        on_bug: Callable[[BaseException], None],
        story: Story = UNTOLD,
    ) -> None:
        self._core = core
        self._story = story
        self._handle_event = story.recorded(core.handle)
        self._clock = clock
        self._perform = perform
        self._submit = submit
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._events: deque[WorkerEvent] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        # Shared with the forward thread, and so is the core.
        self._lock = threading.Lock()
        self._stopped = False
        self._changes: list[OpenBlock | CloseBlock] = []
        self._todo: deque[WorkerEffect | ForwardJob] = deque()
        self._woken = False
        self._looked_at_s = 0.0
        self._in_forward = False

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

    def complete(self, event: IterationCompleted) -> ForwardJob | None:
        """Forward thread: handle a forward's outcome; returns the next forward, None when there is none to run yet.

        Only for the decode role: what a prefill worker does next may depend on readers of its pages.
        """
        with self._lock:
            if self._stopped:
                return None
            try:
                fresh = self._handle(event)
            except BaseException:
                self._stopped = True
                raise
            # They end what others do with pages that the next forward may be writing to.
            assert not any(isinstance(effect, ForgetKv | AbortFetch) for effect in fresh), fresh
            job = next((effect for effect in fresh if isinstance(effect, ForwardJob)), None)
            left = [effect for effect in fresh if effect is not job]
            self._todo.extend(left)
            if not self._woken and self._must_wake(left, forward_s=event.duration_s):
                self._woken = True
                self._loop.call_soon_threadsafe(self._turn)
            return job

    def view(self) -> WorkerView:
        """A snapshot of the core."""
        with self._lock:
            return self._core.view()

    def holdings(self) -> CoreHoldings:
        """What the core holds, and what of it for nobody."""
        with self._lock:
            books = self._core.books
            return CoreHoldings(
                unowned=tuple(books.unowned(self._clock.now())),
                here=books.here(),
                awaited=books.awaited(),
                offered=books.offered(),
            )

    def check_conservation(self) -> None:
        """Have the core assert that its pages add up."""
        with self._lock:
            self._core.check_conservation()

    def check_at_rest(self) -> None:
        """As `check_conservation`, while the core has nothing to do."""
        with self._lock:
            if self._core.view().idle:
                self._core.check_conservation()

    def stop(self) -> None:
        """Handle nothing more."""
        with self._lock:
            self._stopped = True
            self._story.close()
        self._disarm()

    def _must_wake(self, left: list[WorkerEffect | ForwardJob], *, forward_s: float) -> bool:
        """Whether the event loop is to look now, and not when its timer rings."""
        if forward_s >= DEFAULT_STREAM_INTERVAL_S:
            return True
        if self._clock.now() - self._looked_at_s >= DEFAULT_QUICK_STEPS_WAIT_S:
            return True
        return not all(_can_wait(effect) for effect in left)

    def _turn(self, refusals: list[WireError] | None = None) -> None:
        """Do what is to be done, in order; a refusal is noted in `refusals`, or is a bug without them."""
        if self._busy or self._stopped:
            return
        self._busy = True
        try:
            self._do_all(self._take())
            while self._events and not self._stopped:
                self._do_all(self._handled(self._events.popleft(), refusals))
            self._arm()
        except Exception as bug:
            self.stop()
            self._on_bug(bug)
        finally:
            self._busy = False

    def _do_all(self, effects: deque[WorkerEffect | ForwardJob]) -> None:
        for effect in effects:
            if isinstance(effect, ForwardJob):
                self._submit(effect)
            else:
                self._perform(effect)

    def _take(self) -> deque[WorkerEffect | ForwardJob]:
        with self._lock:
            return self._taken()

    def _taken(self) -> deque[WorkerEffect | ForwardJob]:
        """With the lock: what is to be performed by now."""
        self._woken = False
        self._looked_at_s = self._clock.now()
        todo, self._todo = self._todo, deque()
        return todo

    def _handled(self, event: WorkerEvent, refusals: list[WireError] | None) -> deque[WorkerEffect | ForwardJob]:
        with self._lock:
            try:
                self._todo.extend(self._handle(event))
            except WireError as refusal:
                if refusals is None:
                    raise
                refusals.append(refusal)
            return self._taken()

    def _handle(self, event: WorkerEvent) -> list[WorkerEffect | ForwardJob]:
        """With the lock: what the core asks for, in order; a forward brings the blocks to open and close before it."""
        asked: list[WorkerEffect | ForwardJob] = []
        if isinstance(event, IterationCompleted):
            self._in_forward = False
        for effect in self._handle_event(event, self._clock.now()):
            match effect:
                case OpenBlock() | CloseBlock():
                    self._changes.append(effect)
                case RunIteration():
                    asked.append(ForwardJob(changes=tuple(self._changes), run=effect))
                    self._changes.clear()
                    self._in_forward = True
                case _:
                    asked.append(effect)
        return asked

    def _arm(self) -> None:
        """Set the timers: for the core's next wish, and for what the forward thread leaves."""
        self._disarm()
        with self._lock:
            if self._stopped:
                return
            wakeup, in_forward = self._core.next_wakeup(), self._in_forward
        if in_forward:
            self._look = self._loop.call_later(DEFAULT_QUICK_STEPS_WAIT_S, self._look_again)
        if wakeup is not None:
            delay_s = max(0.0, wakeup - self._clock.now())
            self._timer = self._loop.call_later(delay_s, self.feed, WorkerTick())

    def _look_again(self) -> None:
        """From now on a step wakes the loop at once, until it does."""
        self._look = None
        with self._lock:
            left_over = bool(self._todo) and not self._woken
        if left_over:
            self._turn()

    def _disarm(self) -> None:
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        self._timer = self._look = None


def _can_wait(effect: WorkerEffect | ForwardJob) -> bool:
    """A block's first tokens go out at once, and so does whatever someone waits for."""
    return isinstance(effect, Report) or (isinstance(effect, SendStep) and effect.step.step > 0)
