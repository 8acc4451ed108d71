"""One scheduler of a simulated cluster: a `SchedulerCore`, and in place of its RPC shell the agenda and the wires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.core import effects as fx
from common.core.cluster import WorkerSpec
from common.core.events import (
    CallFailed,
    DecodeCompleted,
    PrefillCompleted,
    RequestSubmitted,
    SchedulerEvent,
    Tick,
    WorkerLost,
    WorkerRegistered,
)
from common.core.ids import CallId, RequestId, WorkerId, WorkerLife
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.core.work import RequestSpec
from common.errors import Reason, WireError
from common.sim.network import Lane
from common.sim.worker import SimWorker, WorkerCall
from common.sim.world import World

OnEnd = Callable[[RequestId, Reason | None], None]
"""Told when a request has ended; the reason is None when it finished."""

_CALL_ENDS = (PrefillCompleted, DecodeCompleted, CallFailed)


class SimCell:
    """A scheduler and its workers. `on_end` speaks for the gateway."""

    def __init__(self, *, name: str, config: SchedulerConfig, world: World, on_end: OnEnd) -> None:
        self.name = name
        self.core = SchedulerCore(config)
        self.workers: dict[WorkerId, SimWorker] = {}
        self._world = world
        self._on_end = on_end
        self._calls: dict[CallId, tuple[WorkerCall, SimWorker]] = {}
        self._orders: dict[WorkerId, Lane] = {}
        self._tick_at_s: float | None = None
        self._methods: dict[type[fx.SchedulerEffect], Callable[[Any], None]] = {
            fx.CallPrefill: self._call,
            fx.CallDecode: self._call,
            fx.CancelCall: self._cancel_call,
            fx.ReleaseKv: self._release_kv,
            fx.FenceWorker: self._fence_worker,
            fx.PublishStep: self._publish_step,
            fx.PublishBlock: self._publish_block,
            fx.FinishRequest: self._finish,
            fx.FailRequest: self._fail,
        }

    def submit(self, spec: RequestSpec) -> None:
        """A request arrives from the gateway."""
        try:
            self.apply(RequestSubmitted(spec=spec))
        except WireError as refusal:
            if refusal.reason is not Reason.DUPLICATE_REQUEST_ID:
                self._on_end(spec.request_id, refusal.reason)

    def register(self, worker: WorkerSpec) -> None:
        """A worker life is ready."""
        self.apply(WorkerRegistered(worker=worker))

    def apply(self, event: SchedulerEvent) -> None:
        """Let the core handle an event. Raises WireError for a refused submission."""
        world, now = self._world, self._world.agenda.now
        world.recorder.core_events += 1
        effects = self.core.handle(event, now)
        world.digest.add(now, self.name, effects)
        for effect in effects:
            self._methods[type(effect)](effect)
        if isinstance(event, _CALL_ENDS):
            self._calls.pop(event.call_id, None)
        self._set_tick()

    def lose(self, life: WorkerLife) -> None:
        """The heartbeat of that life has ended or is overdue."""
        self.apply(WorkerLost(life=life))

    def _call(self, effect: fx.CallPrefill | fx.CallDecode) -> None:
        worker = self.workers[effect.target.worker_id]
        call = WorkerCall(effect=effect)
        self._calls[effect.call_id] = call, worker
        self._world.network.send(call.requests, worker.life.worker_id, worker.accept, call, once=True)

    def _cancel_call(self, effect: fx.CancelCall) -> None:
        call, worker = self._calls.pop(effect.call_id)
        self._world.network.send(call.requests, worker.life.worker_id, worker.cancel, call)

    def _release_kv(self, effect: fx.ReleaseKv) -> None:
        worker = self.workers[effect.owner.worker_id]
        if worker.life == effect.owner:
            lane = self._orders.setdefault(effect.owner.worker_id, Lane())
            self._world.network.send(lane, worker.life.worker_id, worker.release_kv, effect.attempt)

    def _fence_worker(self, effect: fx.FenceWorker) -> None:
        worker_id = effect.life.worker_id
        lane = self._orders.setdefault(worker_id, Lane())
        self._world.network.send(lane, worker_id, self.workers[worker_id].fence, effect.life)
        self._world.agenda.after(self._world.network.delay_s(worker_id), self._world.data_plane.lose, effect.life)

    def _publish_step(self, effect: fx.PublishStep) -> None:
        self._world.recorder.published(effect.request_id, effect.step, self._world.agenda.now)

    def _publish_block(self, effect: fx.PublishBlock) -> None:
        self._world.recorder.committed(effect.request_id, effect.placement, self._world.now)

    def _finish(self, effect: fx.FinishRequest) -> None:
        self._on_end(effect.request_id, None)

    def _fail(self, effect: fx.FailRequest) -> None:
        self._on_end(effect.request_id, effect.reason)

    def _set_tick(self) -> None:
        wakeup_s = self.core.next_wakeup()
        if wakeup_s is not None and (self._tick_at_s is None or wakeup_s < self._tick_at_s):
            self._tick_at_s = wakeup_s
            self._world.agenda.at(max(wakeup_s, self._world.now), self._tick, wakeup_s)

    def _tick(self, at_s: float) -> None:
        if self._tick_at_s == at_s:
            self._tick_at_s = None
            self.apply(Tick())
