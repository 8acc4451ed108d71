"""The seam between the pure core and the world: events go in, each effect becomes a call, an order or a message.

Everything runs on one event loop, so `apply` is atomic: the core handles an event and its effects are started before
anything else happens. Each CallPrefill/CallDecode is a task of `run`'s task group whose results are the next events.
A bug in the core ends `run`, and with it the process: half-applied state is never served.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from common.clock import Clock
from common.core.cluster import ClusterView, WorkerSpec
from common.core.effects import (
    CallDecode,
    CallPrefill,
    CancelCall,
    FailRequest,
    FenceWorker,
    FinishRequest,
    PublishBlock,
    PublishStep,
    ReleaseKv,
    SchedulerEffect,
)
from common.core.events import (
    RequestCancelled,
    RequestSubmitted,
    SchedulerEvent,
    Tick,
    WorkerDraining,
    WorkerLost,
    WorkerRegistered,
)
from common.core.ids import CallId, RequestId, WorkerLife
from common.core.scheduler import SchedulerCore
from common.core.unowned import Unowned
from common.core.work import RequestSpec
from common.errors import Reason, WireError
from common.metrics.leaks import LeakWatch
from common.rpc.status import internal_error
from common.story.writer import UNTOLD, Story
from common.telemetry import current_trace_id
from services.scheduler.fencing import RegistryFencer
from services.scheduler.liveness import Liveness, stale
from services.scheduler.measures import SchedulerMeasures
from services.scheduler.outbox import RequestOutbox
from services.scheduler.urgency import CALL_LEAD_S, by_urgency
from services.scheduler.wait_notices import RequestWaits, WaitNotices
from services.scheduler.worker_calls import CallOutcome, WorkerCall, WorkerCalls

log = logging.getLogger(__name__)


class SchedulerShell:
    """Drives one `SchedulerCore`. Methods are called on the event loop that awaits `run`."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        clock: Clock,
        liveness: Liveness,
        calls: WorkerCalls,
        fencer: RegistryFencer,
        story: Story = UNTOLD,
    ) -> None:
        self._core = core
        self._handle_event = story.recorded(core.handle)
        self._clock = clock
        self._liveness = liveness
        self._worker_calls = calls
        self._fencer = fencer
        self._tasks: asyncio.TaskGroup | None = None
        self._calls: dict[CallId, asyncio.Task[None]] = {}
        self._until_stop: set[asyncio.Task[None]] = set()
        self._outboxes: dict[RequestId, list[RequestOutbox]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._later: list[SchedulerEffect] = []
        self._catching_up: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._wait_notices = WaitNotices()
        self._leaks = LeakWatch(clock=clock, unowned=self._unowned, check=self._check_at_rest)
        self._measures = SchedulerMeasures(core, clock)
        self._dispatch: dict[type[SchedulerEffect], Callable[[Any], None]] = {
            CallPrefill: self._call_prefill,
            CallDecode: self._call_decode,
            CancelCall: self._cancel_call,
            ReleaseKv: self._release_kv,
            FenceWorker: self._fence_worker,
            PublishStep: self._publish,
            PublishBlock: self._publish,
            FinishRequest: self._publish_last,
            FailRequest: self._publish_last,
        }

    async def run(self) -> None:
        """Own all tasks until `stop`; raises what a bug in the core or in a task raised."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for part in (self._fencer.run(), self._watch(), self._leaks.run(), self._measures.run()):
                self.spawn(part)
            try:
                await self._ended
            finally:
                self._stopping = True
                if self._timer is not None:
                    self._timer.cancel()
                # Each by itself: a handler that writes to a peer that stands still would not end what it had spawned.
                for task in self._until_stop:
                    task.cancel()
        await self._worker_calls.aclose()

    def stop(self, error: WireError) -> None:
        """End every stream with `error`, cancel every call, and let `run` return."""
        self._catch_up()
        self._stopping = True
        for outbox in itertools.chain.from_iterable(self._outboxes.values()):
            outbox.fail(error)
        self._liveness.close_all(error)
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def view(self) -> ClusterView:
        """The core's present state, for people and tests."""
        return self._core.view()

    def submit(self, spec: RequestSpec) -> RequestOutbox:
        """Take a request on, or let a further client share the one that runs: it first gets all tokens so far.

        Raises WireError, with nothing changed, when the core refuses it.
        """
        self.check_serving()
        self._catch_up()
        outbox = RequestOutbox(spec.request_id, ahead=self._core.queued_blocks)
        if (so_far := self._core.so_far(spec)) is not None:
            if so_far.step.positions:
                outbox.put(so_far)
            self._outboxes[spec.request_id].append(outbox)
            return outbox
        effects = self._handle(RequestSubmitted(spec=spec))
        self._outboxes[spec.request_id] = [outbox]
        self._carry_out(effects)
        return outbox

    def abandon(self, outbox: RequestOutbox, reason: Reason) -> None:
        """The client of `outbox` is gone: cancel its request, unless it has ended or others share it."""
        sharing = self._outboxes.get(outbox.request_id, [])
        if outbox not in sharing or self._stopping:
            return
        sharing.remove(outbox)
        if not sharing:
            del self._outboxes[outbox.request_id]
            self.apply(RequestCancelled(request_id=outbox.request_id, reason=reason))

    def cancel(self, request_id: RequestId) -> bool:
        """End a request now, whoever shares it: all are told CANCELLED. False when none of that id runs."""
        self.check_serving()
        is_running = request_id in self._outboxes
        if is_running:
            self.apply(RequestCancelled(request_id=request_id, reason=Reason.CANCELLED))
        return is_running

    def register(self, worker: WorkerSpec) -> None:
        """A worker life is ready for work.

        Raises STALE_INCARNATION when that life has ended, LAYOUT_MISMATCH when live workers serve another model.
        """
        self.check_serving()
        self._core.check_model(worker)
        self._liveness.register(worker.life, self._clock.now())
        self._worker_calls.connect(worker)
        self.apply(WorkerRegistered(worker=worker))
        if not self._core.is_live(worker.life):
            self._end_life(worker.life)
            raise stale(worker.life, least_incarnation=self._core.least_incarnation(worker.life.worker_id))

    def lose(self, life: WorkerLife, why: str) -> None:
        """A worker life is over; idempotent."""
        if self._stopping or not self._liveness.is_alive(life):
            return
        log.warning("worker %s life %d is lost: %s", life.worker_id, life.incarnation, why)
        self._end_life(life)
        self.apply(WorkerLost(life=life))

    def drain(self, life: WorkerLife, *, order: bool) -> None:
        """Give a worker nothing new; `order`: tell it to finish and exit. Idempotent."""
        if self._liveness.mark_draining(life, order=order):
            self.apply(WorkerDraining(life=life))

    def apply(self, event: SchedulerEvent) -> None:
        """Let the core handle a fact and carry out what follows."""
        self._apply_all([event])

    def _apply_all(self, events: Sequence[SchedulerEvent]) -> None:
        """Facts that became known at once, in order: all are handled before anything is carried out."""
        if not self._stopping:
            self._carry_out([effect for event in events for effect in self._handle(event)])

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], *, context: contextvars.Context | None = None
    ) -> asyncio.Task[None]:
        """A task owned by `run`: its exceptions end the process, `stop` cancels it. `context` None: the caller's."""
        assert self._tasks is not None, "the shell is not running"
        task = self._tasks.create_task(coroutine, context=context)
        self._until_stop.add(task)
        task.add_done_callback(self._until_stop.discard)
        return task

    def check_serving(self) -> None:
        """Raise SCHEDULER_UNAVAILABLE before `run` and from `stop` on."""
        if self._tasks is None or self._stopping:
            raise WireError(Reason.SCHEDULER_UNAVAILABLE, "the scheduler is starting or stopping; try again")

    def _handle(self, event: SchedulerEvent) -> list[SchedulerEffect]:
        try:
            return self._handle_event(event, self._clock.now())
        except WireError:
            if isinstance(event, RequestSubmitted):
                raise
            self._crash()
            raise
        except BaseException:
            self._crash()
            raise

    def _crash(self) -> None:
        """Hand the exception now being handled to `run`: its caller may be a handler that would only log it."""
        error = sys.exception()
        assert error is not None
        self._stopping = True
        if not self._ended.done():
            self._ended.set_exception(error)

    def _carry_out(self, effects: list[SchedulerEffect]) -> None:
        """Workers first, a device waits for them; what nobody waits for, only when their calls are on their way."""
        self._catch_up()
        at_once, later = by_urgency(effects)
        for effect in at_once:
            self._dispatch[type(effect)](effect)
        self._set_timer()
        loop = asyncio.get_running_loop()
        if later:
            self._later = later
            self._catching_up = loop.call_later(CALL_LEAD_S, self._catch_up)
        if any(isinstance(effect, PublishBlock) for effect in effects):
            # Counted after what has just been started and told has left.
            loop.call_later(2 * CALL_LEAD_S, self._measures.observe, effects)

    def _catch_up(self) -> None:
        """Carry out what was put off: before anything that is newer."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None
        later, self._later = self._later, []
        for effect in later:
            self._dispatch[type(effect)](effect)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakeup_s = self._core.next_wakeup()
        if wakeup_s is not None:
            delay_s = max(0.0, wakeup_s - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.apply, Tick())

    def _call_prefill(self, effect: CallPrefill) -> None:
        self._start_call(effect, lambda: self._worker_calls.prefill(effect))

    def _call_decode(self, effect: CallDecode) -> None:
        self._start_call(effect, lambda: self._worker_calls.decode(effect))

    def _start_call(self, effect: CallPrefill | CallDecode, start: Callable[[], WorkerCall]) -> None:
        """Call at once, before a task could: what is told to clients meanwhile must not go first."""
        sharing = self._outboxes.get(effect.work.attempt.request_id)
        # Copied: what runs here now may be in that context itself.
        context = sharing[0].context.copy() if sharing else contextvars.copy_context()
        call = context.run(start)
        task = self.spawn(self._follow(call.outcomes), context=context)
        self._calls[effect.call_id] = task
        task.add_done_callback(lambda done: self._forget_call(effect.call_id, call))

    def _forget_call(self, call_id: CallId, call: WorkerCall) -> None:
        self._calls.pop(call_id, None)
        # A task that is cancelled before its first turn never came to read it.
        call.cancel()

    async def _follow(self, outcomes: AsyncGenerator[Sequence[CallOutcome], None]) -> None:
        async with aclosing(outcomes):
            async for known in outcomes:
                self._apply_all(known)

    def _cancel_call(self, effect: CancelCall) -> None:
        task = self._calls.pop(effect.call_id, None)
        if task is not None:
            task.cancel()

    def _release_kv(self, effect: ReleaseKv) -> None:
        self._liveness.release_kv(effect.owner, effect.attempt)

    def _fence_worker(self, effect: FenceWorker) -> None:
        self._end_life(effect.life)
        self._fencer.fence(effect.life)

    def _end_life(self, life: WorkerLife) -> None:
        self._liveness.end(life)
        assert self._tasks is not None, "only a running shell has lives"
        self._tasks.create_task(self._worker_calls.disconnect(life))

    def _publish(self, effect: PublishStep | PublishBlock) -> None:
        for outbox in self._outboxes.get(effect.request_id, ()):
            outbox.put(effect)

    def _publish_last(self, effect: FinishRequest | FailRequest) -> None:
        sharing = self._outboxes.pop(effect.request_id, [])
        if isinstance(effect, FailRequest) and effect.reason is Reason.INTERNAL:
            trace_id = sharing[0].trace_id if sharing else current_trace_id()
            log.error("request %s failed (trace %s): %s", effect.request_id, trace_id, effect.story)
            for outbox in sharing:
                outbox.fail(internal_error(trace_id))
            return
        for outbox in sharing:
            outbox.put(effect)

    async def _watch(self) -> None:
        """Report silent workers lost, and tell clients who wait for a worker that is not there."""
        while True:
            for life in self._liveness.silent(self._clock.now()):
                self.lose(life, f"silent for more than {self._liveness.timeout_s:g} s")
            self._tell_who_waits()
            await self._clock.sleep(self._liveness.look_interval_s)

    def _tell_who_waits(self) -> None:
        waiting = self._core.unservable()
        for request_id in self._wait_notices.due(waiting, self._clock.now()):
            for outbox in self._outboxes.get(request_id, ()):
                outbox.put(RequestWaits(reason=waiting[request_id]))

    def _unowned(self) -> list[Unowned]:
        return self._core.unowned(self._outboxes.keys())

    def _check_at_rest(self) -> None:
        """While nothing runs, the core proves that it owes nothing."""
        if not self._outboxes and not self._calls:
            self._core.check_conservation()
