"""One worker process of a simulated cluster: a `WorkerCore`, with the agenda and the wires for engine and RPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from common.core import worker_effects as wx
from common.core.cluster import WorkerSpec
from common.core.defaults import DEFAULT_REPORT_INTERVAL_S
from common.core.effects import CallDecode, CallPrefill
from common.core.events import (
    CallFailed,
    DecodeCompleted,
    DecodeKvReceived,
    DecodeStepped,
    KvLeaseEnded,
    PrefillCompleted,
    SchedulerEvent,
    WorkerReported,
)
from common.core.ids import BlockAttempt, CallId, WorkerLife
from common.core.work import IterationReport, KvHandle, StepDelta
from common.core.worker import WorkerCore
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_events import (
    DecodeRequested,
    IterationCompleted,
    LifeEnded,
    PrefillRequested,
    WorkCancelled,
    WorkerEvent,
    WorkerTick,
)
from common.errors import Reason
from common.sim.network import Lane
from common.sim.records import ForwardRecord
from common.sim.reveal import SimBlock
from common.sim.world import World


class Overseer(Protocol):
    """The scheduler as a worker knows it."""

    def apply(self, event: SchedulerEvent) -> None:
        """An event arrives at the scheduler."""
        ...

    def register(self, worker: WorkerSpec) -> None:
        """A worker life says that it is ready."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerCall:
    """A Prefill or Decode call as its server sees it; its two lanes keep what is asked and what is said in order."""

    effect: CallPrefill | CallDecode
    requests: Lane = field(default_factory=Lane)
    answers: Lane = field(default_factory=Lane)

    @property
    def call_id(self) -> CallId:
        """The caller's name for it."""
        return self.effect.call_id


class SimWorker:
    """One process. It is fenced and lives on under a new incarnation, or crashes and is replaced by another process."""

    def __init__(self, *, spec: WorkerSpec, config: WorkerCoreConfig, world: World, overseer: Overseer) -> None:
        self.spec = spec
        self.life: WorkerLife = spec.life
        self.alive = True
        self.frozen_until_s = 0.0
        self.core = WorkerCore(config)
        self._world = world
        self._overseer = overseer
        self._calls: dict[BlockAttempt, WorkerCall] = {}
        self._blocks: dict[BlockAttempt, SimBlock] = {}
        self._retained: dict[BlockAttempt, KvHandle] = {}
        self._firsts: dict[BlockAttempt, StepDelta] = {}
        self._computing: dict[BlockAttempt, float] = {}
        self._heartbeat = Lane()
        self._unsent_report: IterationReport | None = None
        self._report_due = False
        self._tick_at_s: float | None = None
        self._methods: dict[type[wx.WorkerEffect], Callable[[Any], None]] = {
            wx.OpenBlock: self._open_block,
            wx.CloseBlock: self._close_block,
            wx.RunIteration: self._run_iteration,
            wx.FetchKv: self._fetch_kv,
            wx.AbortFetch: self._abort_fetch,
            wx.RetainKv: self._retain_kv,
            wx.ForgetKv: self._forget_kv,
            wx.SendKvReceived: self._send_kv_received,
            wx.SendStep: self._send_step,
            wx.SendPrefillResult: self._send_prefill_result,
            wx.SendCompletion: self._send_completion,
            wx.SendFailure: self._send_failure,
            wx.Report: self._report,
        }

    # What reaches the process.

    def feed(self, event: WorkerEvent) -> None:
        """Let the core handle an event, as soon as the process runs."""
        if not self.alive:
            return
        world, now = self._world, self._world.now
        if self.frozen_until_s > now:
            world.agenda.at(self.frozen_until_s, self.feed, event)
            return
        world.recorder.core_events += 1
        if isinstance(event, IterationCompleted):
            self._computing.clear()
        effects = self.core.handle(event, now)
        world.digest.add(now, self.life.worker_id, effects)
        for effect in effects:
            self._methods[type(effect)](effect)
        self._set_tick()

    def accept(self, call: WorkerCall) -> None:
        """A call arrives."""
        world, effect = self._world, call.effect
        if not self.alive:
            self._answer(call, CallFailed(call_id=call.call_id, reason=Reason.PEER_LOST))
        elif self.frozen_until_s > world.now:
            world.agenda.at(self.frozen_until_s, self.accept, call)
        elif effect.target != self.life:
            self._answer(call, CallFailed(call_id=call.call_id, reason=Reason.STALE_INCARNATION))
        elif effect.work.attempt in self._calls:
            self._answer(call, CallFailed(call_id=call.call_id, reason=Reason.STALE_ATTEMPT))
        else:
            self._calls[effect.work.attempt] = call
            if isinstance(effect, CallDecode):
                self.feed(DecodeRequested(work=effect.work, source=effect.source))
            else:
                self.feed(PrefillRequested(work=effect.work))

    def cancel(self, call: WorkerCall) -> None:
        """The caller of that call is gone."""
        attempt = call.effect.work.attempt
        if self.frozen_until_s > self._world.now:
            self._world.agenda.at(self.frozen_until_s, self.cancel, call)
        elif self._calls.get(attempt) is call:
            del self._calls[attempt]
            self.feed(WorkCancelled(attempt=attempt))

    def release_kv(self, attempt: BlockAttempt) -> None:
        """The scheduler says that nobody will come for this K/V, nor for what its prefill is still to compute."""
        self.feed(WorkCancelled(attempt=attempt))

    def fence(self, life: WorkerLife) -> None:
        """The scheduler has given this life up: drop its work, live another."""
        if not self.alive or life != self.life:
            return
        if self.frozen_until_s > self._world.now:
            self._world.agenda.at(self.frozen_until_s, self.fence, life)
            return
        self.feed(LifeEnded())
        self._calls.clear()
        self.begin_life(replace(self.spec, life=WorkerLife(life.worker_id, life.incarnation + 1)))

    def begin_life(self, spec: WorkerSpec) -> None:
        """Register as that life."""
        self.spec, self.life = spec, spec.life
        self._world.network.send(self._heartbeat, self.life.worker_id, self._overseer.register, spec)

    def crash(self) -> list[WorkerCall]:
        """The process is gone; returns the calls that break."""
        self.alive = False
        return list(self._calls.values())

    def break_call(self, call: WorkerCall) -> None:
        """The caller's connection breaks."""
        self._answer(call, CallFailed(call_id=call.call_id, reason=Reason.PEER_LOST))

    def offers(self, attempt: BlockAttempt) -> bool:
        """Whether that K/V may be fetched here."""
        return attempt in self._retained

    def computes_until_s(self, attempt: BlockAttempt) -> float | None:
        """When the forward that computes that K/V ends; None: none runs."""
        return self._computing.get(attempt)

    def revealed(self, attempt: BlockAttempt) -> StepDelta:
        """What the prefill of that K/V revealed."""
        return self._firsts[attempt]

    # What the core asks for.

    def _open_block(self, effect: wx.OpenBlock) -> None:
        self._blocks[effect.work.attempt] = SimBlock(effect.work, self._world.reveal, effect.first)
        if effect.first is not None:
            self._world.recorder.decode_began(effect.work.attempt.request_id, self._world.now)

    def _close_block(self, effect: wx.CloseBlock) -> None:
        del self._blocks[effect.attempt]

    def _run_iteration(self, effect: wx.RunIteration) -> None:
        world, now = self._world, self._world.now
        # The engine holds its batch: what is closed meanwhile is still computed.
        states = [(attempt, self._blocks[attempt]) for attempt in (*effect.decodes, *effect.prefills)]
        decodes = [block.decode_item for _, block in states[: len(effect.decodes)]]
        prefills = [block.prefill_item for _, block in states[len(effect.decodes) :]]
        duration_s = world.cost.forward_s(decodes, prefills)
        for attempt in effect.prefills:
            world.recorder.prefill_started(attempt.request_id, now)
            self._computing[attempt] = now + duration_s
            world.data_plane.begin_prefill(attempt)
        forward = ForwardRecord(
            start_s=now,
            duration_s=duration_s,
            decode_tokens=sum([item.query_tokens for item in decodes]),
            prefill_tokens=sum([item.canvas_tokens for item in prefills]),
        )
        world.recorder.ran(self.life.worker_id, forward)
        world.agenda.after(duration_s, self._complete_iteration, effect, states, duration_s)

    def _complete_iteration(
        self, effect: wx.RunIteration, states: list[tuple[BlockAttempt, SimBlock]], duration_s: float
    ) -> None:
        if not self.alive:
            return
        deltas = tuple([(attempt, block.advance()) for attempt, block in states])
        for attempt in effect.prefills:
            self._world.recorder.prefilled(attempt.request_id, duration_s)
            if isinstance(self._call_effect(attempt), CallDecode):
                self._world.recorder.decode_began(attempt.request_id, self._world.now)
        self.feed(IterationCompleted(iteration=effect.iteration, deltas=deltas, duration_s=duration_s))

    def _call_effect(self, attempt: BlockAttempt) -> CallPrefill | CallDecode | None:
        call = self._calls.get(attempt)
        return None if call is None else call.effect

    def _fetch_kv(self, effect: wx.FetchKv) -> None:
        self._world.data_plane.fetch(self, effect.attempt, effect.handle, early=effect.early)

    def _abort_fetch(self, effect: wx.AbortFetch) -> None:
        self._world.data_plane.abort(effect.attempt)

    def _retain_kv(self, effect: wx.RetainKv) -> None:
        self._retained[effect.attempt] = KvHandle(
            attempt=effect.attempt,
            owner=self.life,
            transport=self.spec.kv_transport,
            address=self.spec.kv_address,
            layout_fingerprint=self.spec.layout_fingerprint,
            canvas_tokens=effect.canvas_tokens,
            pages=len(effect.page_ids),
            lease_s=effect.lease_s,
        )

    def _forget_kv(self, effect: wx.ForgetKv) -> None:
        owner = self._retained.pop(effect.attempt).owner
        self._firsts.pop(effect.attempt, None)
        self._world.data_plane.abort(effect.attempt)
        self._tell(KvLeaseEnded(owner=owner, attempt=effect.attempt))

    def _send_kv_received(self, effect: wx.SendKvReceived) -> None:
        if call := self._calls.get(effect.attempt):
            self._answer(
                call,
                DecodeKvReceived(call_id=call.call_id, transfer=effect.transfer, first=effect.first),
            )

    def _send_step(self, effect: wx.SendStep) -> None:
        if call := self._calls.get(effect.attempt):
            self._answer(call, DecodeStepped(call_id=call.call_id, step=effect.step))

    def _send_prefill_result(self, effect: wx.SendPrefillResult) -> None:
        if effect.retained:
            self._firsts[effect.attempt] = effect.first
        if call := self._calls.pop(effect.attempt, None):
            kv = self._retained[effect.attempt] if effect.retained else None
            self._answer(call, _prefill_completed(call, effect.first, kv, effect))

    def _send_completion(self, effect: wx.SendCompletion) -> None:
        if call := self._calls.pop(effect.attempt, None):
            self._answer(call, DecodeCompleted(call_id=call.call_id, completion=effect.completion))

    def _send_failure(self, effect: wx.SendFailure) -> None:
        if call := self._calls.pop(effect.attempt, None):
            self._answer(call, CallFailed(call_id=call.call_id, reason=effect.reason))

    def _report(self, effect: wx.Report) -> None:
        """At most one heartbeat per interval; the newest report wins."""
        self._unsent_report = effect.report
        if not self._report_due:
            self._report_due = True
            self._world.agenda.after(0.0, self._send_report)

    # Joints.

    def _send_report(self) -> None:
        report, self._unsent_report = self._unsent_report, None
        self._report_due = report is not None and self.alive
        if self._report_due and report is not None:
            self._tell(WorkerReported(life=self.life, report=report))
            self._world.agenda.after(DEFAULT_REPORT_INTERVAL_S, self._send_report)

    def _tell(self, event: SchedulerEvent) -> None:
        self._world.network.send(self._heartbeat, self.life.worker_id, self._overseer.apply, event)

    def _answer(self, call: WorkerCall, event: SchedulerEvent) -> None:
        self._world.network.send(call.answers, self.life.worker_id, self._overseer.apply, event)

    def _set_tick(self) -> None:
        wakeup_s = self.core.next_wakeup()
        if wakeup_s is not None and (self._tick_at_s is None or wakeup_s < self._tick_at_s):
            self._tick_at_s = wakeup_s
            self._world.agenda.at(max(wakeup_s, self._world.now), self._tick, wakeup_s)

    def _tick(self, at_s: float) -> None:
        if self._tick_at_s == at_s:
            self._tick_at_s = None
            self.feed(WorkerTick())


def _prefill_completed(
    call: WorkerCall, first: StepDelta, kv: KvHandle | None, effect: wx.SendPrefillResult
) -> PrefillCompleted:
    return PrefillCompleted(call_id=call.call_id, first=first, kv=kv, completion=effect.completion)
