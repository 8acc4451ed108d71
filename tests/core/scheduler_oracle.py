"""A cluster that exists only on paper, and what it expects of a scheduler. Shares no code with the core's policy.

`SchedulerOracle` plays gateway, workers and heartbeats: it feeds facts to the core, keeps its own account of what each
request must have produced and what each worker holds, and objects (`Violation`) to any effect that does not fit.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from common.core import effects as fx
from common.core import events as ev
from common.core.block_cost import NO_TRANSFER
from common.core.cluster import WorkerSpec
from common.core.ids import BlockAttempt, RequestId, Role, ServingMode, WorkerLife
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.core.work import IterationReport, LocalPrefill, NoKv, RemoteKv, RequestSpec
from common.errors import Reason, WireError
from tests.core.paper_cluster import DECODING, PREFILLING, READY, WAITING, PaperCall, PaperRequest
from tests.core.paper_readers import PaperReaders
from tests.core.samples import token_at
from tests.core.shares import Shares
from tests.core.violation import require


class SchedulerOracle(PaperReaders):
    """Feeds a core and judges it. Every public method is one thing that happens in the world."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.core = SchedulerCore(config)
        self.unfenced: set[WorkerLife] = set()
        self.echoes: list[ev.SchedulerEvent] = []
        self.owed_releases: set[tuple[WorkerLife, BlockAttempt]] = set()
        self.last_call = 0
        self.refusals = 0
        self.ended = 0
        self.shares = Shares(config)

    # What happens

    def submit(self, spec: RequestSpec) -> None:
        """A client asks; the core may refuse at the door, but only for a reason, and unchanged."""
        before = self.core.view()
        live = spec.request_id in self.requests
        servable = self.longest()
        too_long = 0 < self.config.max_gen_len_tokens < spec.max_tokens
        due = live or too_long or (servable is not None and self.canvas_of(spec) > servable)
        try:
            if not due:
                deadline = None if spec.deadline_s is None else self.now + spec.deadline_s
                self.requests[spec.request_id] = PaperRequest(
                    spec=spec,
                    key=(self.now, spec.request_id),
                    deadline_at=deadline,
                    canvas=self.canvas_of(spec),
                    since=self.now,
                )
            self._feed(ev.RequestSubmitted(spec=spec))
        except WireError as refusal:
            require(due, f"refused without reason: {refusal}")
            require(refusal.reason is (Reason.DUPLICATE_REQUEST_ID if live else Reason.TOO_LONG), refusal.reason)
            require(self.core.view() == before, "a refusal changed something")
            self.refusals += 1
        else:
            require(not due, "took in what it should refuse")

    def register(self, spec: WorkerSpec) -> None:
        """A worker life says it is ready; it may be an old one, or known already."""
        life = spec.life
        fresh = life.incarnation > self.newest.get(life.worker_id, 0)
        if fresh:
            self.newest[life.worker_id] = life.incarnation
            for other in [known for known in self.workers if known.worker_id == life.worker_id]:
                self.bury(other)
                self.unfenced.add(other)
            self.workers[life] = spec
        self._feed(ev.WorkerRegistered(worker=spec))
        require(self.core.is_live(life) == (life in self.workers), f"is_live({life})")

    def lose(self, life: WorkerLife) -> None:
        """A heartbeat ends."""
        if life in self.workers:
            self.bury(life)
            self.unfenced.add(life)
        self._feed(ev.WorkerLost(life=life))

    def want(self, life: WorkerLife, report: IterationReport) -> None:
        """A worker says what it wants."""
        self.wants[life] = report
        self._feed(ev.WorkerReported(life=life, report=report))

    def drain(self, life: WorkerLife) -> None:
        """A worker wants nothing new."""
        if life in self.workers:
            self.draining.add(life)
        self._feed(ev.WorkerDraining(life=life))

    def cancel(self, request_id: RequestId) -> None:
        """The client goes away."""
        self.requests[request_id].may_fail = Reason.CANCELLED
        self._feed(ev.RequestCancelled(request_id=request_id))

    def advance(self, seconds: float) -> None:
        """Time passes: deadlines and leases ring."""
        self.now += seconds
        for request in list(self.requests.values()):
            if request.deadline_at is not None and request.deadline_at <= self.now:
                request.may_fail = Reason.DEADLINE_EXCEEDED
            elif request.lease_end <= self.now and (request.phase == READY or self.fetches_since_before(request)):
                self.expect_retry(request)
        self._feed(ev.Tick())
        wakeup = self.core.next_wakeup()
        require(wakeup is None or wakeup > self.now, "something is due and was not done")

    def end_lease(self, owner: WorkerLife, attempt: BlockAttempt) -> None:
        """An owner says that it no longer keeps that K/V."""
        kept = self.kept.pop((owner, attempt), None)
        request = self.requests.get(attempt.request_id)
        if kept is not None and request is not None and request.now_trying == attempt:
            request.kv = None
            if request.phase == READY:
                self.expect_retry(request)
        self._feed(ev.KvLeaseEnded(owner=owner, attempt=attempt))

    def answer(self, call_id: int, rng: random.Random, *, hide_kv_received: bool = False) -> None:
        """The worker gets one thing done and says so."""
        call = self.calls[call_id]
        request = self.requests[call.work.attempt.request_id]
        if self.is_reader(call):
            said, *late = self.overtake(call, rng)
            self._say(said)
            self.echoes += late
        elif isinstance(call.effect, fx.CallPrefill):
            prefilled = self.finish_prefill(call, rng)
            self.rely_on_reader(request)
            self._say(prefilled)
        elif isinstance(call.source, RemoteKv) and not call.kv_received and not hide_kv_received:
            self.got_kv(call)
            first = request.first if call.source.early else None
            self._say(ev.DecodeKvReceived(call_id=call.effect.call_id, transfer=NO_TRANSFER, first=first))
        elif (call.kv_received or not isinstance(call.source, RemoteKv)) and (finish := self.finished(call, rng)):
            self.close(call_id)
            request.committing = finish
            self._say(ev.DecodeCompleted(call_id=call.effect.call_id, completion=finish))
        else:
            self.got_kv(call)
            step = self.step(call, rng)
            self._say(ev.DecodeStepped(call_id=call.effect.call_id, step=step))

    def fail(self, call_id: int, reason: Reason) -> None:
        """A call breaks, with one of `random_cluster.FAILURES`."""
        call = self.calls[call_id]
        request = self.requests[call.work.attempt.request_id]
        self.shy_from(call)
        if self.is_reader(call):
            self.break_reader(call, reason)
            self._say(ev.CallFailed(call_id=call.effect.call_id, reason=reason))
            return
        self.close(call_id)
        begun = len(call.revealed) > (0 if request.first is None else len(request.first.positions))
        if reason is Reason.INTERNAL:
            request.may_fail = Reason.INTERNAL
        elif reason is Reason.NO_KV_PAGES and not begun and not (call.kv_received and request.first is not None):
            kept = request.kv is not None and (request.kv.owner, request.now_trying) in self.kept
            if request.first is None:
                self.expect_other_prefill(request)
            elif isinstance(call.source, NoKv) or (kept and request.lease_end > self.now):
                request.phase = READY
            else:
                self.expect_retry(request)
        else:
            self.expect_retry(request)
        self._say(ev.CallFailed(call_id=call.effect.call_id, reason=reason))

    def echo(self, index: int) -> None:
        """Something that was said before, or by a call that was cancelled, arrives (again)."""
        event = self.echoes[index]
        if isinstance(event, ev.PrefillCompleted) and event.kv is not None and event.call_id not in self.calls:
            kv = event.kv
            request = self.requests.get(kv.attempt.request_id)
            if kv.owner in self.workers and (request is None or request.now_trying != kv.attempt):
                self.kept[(kv.owner, kv.attempt)] = kv.pages
        self._feed(event)

    def _say(self, event: ev.SchedulerEvent) -> None:
        self.echoes = [*self.echoes[-20:], event]
        self._feed(event)

    def _feed(self, event: ev.SchedulerEvent) -> None:
        for effect in self.core.handle(event, self.now):
            self._judge(effect)
        self._judge_state()

    # Judging effects

    def _judge(self, effect: fx.SchedulerEffect) -> None:
        match effect:
            case fx.CallPrefill():
                self._judge_prefill(effect)
            case fx.CallDecode():
                self._judge_decode(effect)
            case fx.CancelCall():
                self._judge_cancel(effect)
            case fx.ReleaseKv():
                self._judge_release(effect)
            case fx.FenceWorker():
                self._judge_fence(effect)
            case fx.PublishStep():
                self._judge_step(effect)
            case fx.PublishBlock():
                self._judge_block(effect)
            case fx.FinishRequest():
                self._judge_finish(effect)
            case fx.FailRequest():
                self._judge_fail(effect)

    def _judge_prefill(self, effect: fx.CallPrefill) -> None:
        spec = self.workers.get(effect.target)
        require(spec is not None and spec.role is Role.PREFILL, f"{effect.target} is no live prefill worker")
        if self.config.mode is ServingMode.HYBRID:
            require(self.outstanding(effect.target) < self.config.overload_threshold_tokens, "over the threshold")
        self._judge_prefill_turn(effect)
        self._open(effect, PREFILLING, set())

    def _judge_decode(self, effect: fx.CallDecode) -> None:
        request = self.requests[effect.work.attempt.request_id]
        spec = self.workers.get(effect.target)
        require(spec is not None and spec.role is Role.DECODE, f"{effect.target} is no live decode worker")
        source = effect.source
        if isinstance(source, LocalPrefill):
            self._judge_prefill_turn(effect)
            if self.config.mode is not ServingMode.COLOCATED:
                self.judge_overflow(effect)
            self._open(effect, DECODING, set())
            return
        if isinstance(source, RemoteKv) and source.first is None:
            self.judge_reader(effect, source)
            self._judge_call(effect, request)
            self.open_reader(request, effect.call_id)
            return
        require(request.phase == READY and source.first == request.first, "decodes what was not prefilled")
        assert source.first is not None
        if isinstance(source, RemoteKv):
            handle = source.handle
            require(handle.owner in self.workers, "K/V of a dead life")
            require((handle.owner, request.now_trying) in self.kept, "K/V that nobody keeps")
            require(handle.attempt == effect.work.attempt, "K/V of another attempt")
            require(abs(self.now + handle.lease_s - request.lease_end) < 1e-6, "lease not counted down")
        older = [r for r in self.requests.values() if r.phase == READY and r.key < request.key]
        require(not older, f"{request.key} decodes before {[r.key for r in older]}")
        self._open(effect, DECODING, set(source.first.positions))

    def _judge_prefill_turn(self, effect: fx.CallPrefill | fx.CallDecode) -> None:
        work = effect.work
        request = self.requests[work.attempt.request_id]
        require(request.phase == WAITING, f"{work.attempt} was not waiting")
        waiting = [r for r in self.requests.values() if r.phase == WAITING and self.fits(r.spec)]
        passed = [r.key for r in waiting if r is not request and self.goes_before(r, request)]
        require(not passed, f"{request.key} passes {passed}")
        self.shares.place(request.spec.tenant, request.canvas)
        self.shares.waiting({r.spec.tenant for r in waiting if r is not request})
        self.judge_binding(effect)

    def _open(self, effect: fx.CallPrefill | fx.CallDecode, phase: str, revealed: set[int]) -> None:
        request = self.requests[effect.work.attempt.request_id]
        require(request.end is None and request.call_id is None, f"{effect.work.attempt} placed")
        self._judge_call(effect, request, revealed)
        request.call_id, request.phase = effect.call_id, phase

    def _judge_call(
        self, effect: fx.CallPrefill | fx.CallDecode, request: PaperRequest, revealed: Collection[int] = ()
    ) -> None:
        work = effect.work
        require(effect.call_id > self.last_call and request.may_fail is None, "call ids grow")
        require(work.attempt == request.now_trying, f"{work.attempt} instead of {request.now_trying}")
        before = range(request.positions.start)
        require(work.canvas_tokens == request.canvas, "another canvas")
        require(work.generated_token_ids == tuple(token_at(work.attempt.request_id, p) for p in before), "wrong prefix")
        require(effect.target not in self.draining, "work for a draining worker")
        pages = self.workers[effect.target].pages_for(work.canvas_tokens)
        require(pages <= self.free(effect.target), f"{effect.target} has no {pages} pages")
        if request.deadline_at is not None:
            require(
                effect.deadline_s is not None and 0 < effect.deadline_s <= request.deadline_at - self.now, "deadline"
            )
        self.last_call = effect.call_id
        step = len(revealed) and 1
        self.calls[effect.call_id] = PaperCall(effect=effect, revealed=set(revealed), step=step)

    def _judge_cancel(self, effect: fx.CancelCall) -> None:
        call = self.calls.pop(effect.call_id, None)
        require(call is not None, f"cancels {effect.call_id}, which does not run")
        assert call is not None
        request = self.requests[call.work.attempt.request_id]
        over = request.may_fail is not None or request.now_trying != call.work.attempt
        if request.reader_id == effect.call_id:
            over = over or request.committing is not None or call.effect.target not in self.workers
            self.reader_ended(request)
        else:
            request.call_id = None
        require(over, "cancels what is wanted")
        if isinstance(call.effect, fx.CallPrefill) and call.effect.target in self.workers:
            # The worker may have answered already: what it then keeps must be let go.
            self.owed_releases.add((call.effect.target, call.work.attempt))
        self.echoes += self.late_answers(call)

    def _judge_release(self, effect: fx.ReleaseKv) -> None:
        require(effect.owner in self.workers, f"tells dead {effect.owner} to release")
        request = self.requests.get(effect.attempt.request_id)
        wanted = request is not None and request.may_fail is None and request.now_trying == effect.attempt
        require(not wanted, f"releases {effect.attempt}, which is needed")
        key = (effect.owner, effect.attempt)
        require(key in self.owed_releases or key in self.kept, "releases what nobody keeps")
        self.owed_releases.discard(key)
        self.kept.pop(key, None)

    def _judge_fence(self, effect: fx.FenceWorker) -> None:
        require(effect.life in self.unfenced, f"fences {effect.life}")
        self.unfenced.remove(effect.life)

    def _judge_step(self, effect: fx.PublishStep) -> None:
        request = self.requests[effect.request_id]
        require(effect.block == request.block and len(effect.step.positions) > 0, "step of another block")
        for position, token in zip(effect.step.positions, effect.step.token_ids, strict=True):
            require(position in request.positions and position not in request.shown, f"{position} shown again")
            require(token == token_at(effect.request_id, position), "wrong token")
            request.shown[position] = token

    def _judge_block(self, effect: fx.PublishBlock) -> None:
        request = self.requests[effect.request_id]
        completion, request.committing = request.committing, None
        require(completion is not None, "a block nobody completed")
        require(effect.placement.block == request.block, "another block")
        require(effect.placement.attempts == request.tries, "attempts miscounted")
        request.phase, request.first, request.kv, request.lease_end = WAITING, None, None, float("inf")
        if completion is not None and completion.finish is not None:
            request.phase = "finishing"
            return
        require(all(position in request.shown for position in request.positions), "holes in a committed block")
        request.block, request.attempt, request.renamed, request.shown = request.block + 1, 0, 0, {}
        request.read_early = False
        request.since = self.now

    def _judge_finish(self, effect: fx.FinishRequest) -> None:
        request = self.requests.pop(effect.request_id)
        require(request.phase == "finishing", "finished too early")
        self.ended += 1

    def _judge_fail(self, effect: fx.FailRequest) -> None:
        request = self.requests.pop(effect.request_id)
        if effect.reason is Reason.TOO_LONG:
            require(effect.field == "max_tokens" and not self.fits(request.spec), "not too long")
        else:
            require(effect.reason is request.may_fail, f"{effect.reason} instead of {request.may_fail}")
        require(bool(effect.message), "no message")
        self.ended += 1

    # Judging what is left

    def _judge_state(self) -> None:
        require(not self.unfenced, f"not fenced: {self.unfenced}")
        require(not self.owed_releases, f"cancelled and not released: {self.owed_releases}")
        wanted = {call_id for request in self.requests.values() for call_id in (request.call_id, request.reader_id)}
        require(wanted - {None} == set(self.calls), "calls that nobody wants still run")
        for request in self.requests.values():
            require(request.may_fail is None and request.committing is None, f"{request.key} should have ended")
        for (owner, attempt), _ in self.kept.items():
            keeper = self.requests.get(attempt.request_id)
            require(keeper is not None and keeper.now_trying == attempt, f"{owner} keeps {attempt} for nobody")
        self._judge_view()
        self.judge_progress()
        self.judge_reader_progress()
        self.shares.waiting({r.spec.tenant for r in self.requests.values() if r.phase == WAITING and self.fits(r.spec)})

    def _judge_view(self) -> None:
        view = self.core.view()
        phases = [request.phase for request in self.requests.values()]
        require(view.running_requests == len(phases), "running requests")
        require(view.queued_blocks == phases.count(WAITING), "queued blocks")
        require(view.waiting_decode_blocks == phases.count(READY), "waiting decodes")
        require(view.ended_requests == self.ended and view.replay_divergences == 0, "ended requests")
        require((view.early_readers, view.early_readers_unused) == (self.readers, self.readers_unused), "early readers")
        require([worker.spec for worker in view.workers] == [self.workers[k] for k in sorted(self.workers)], "workers")
        for worker in view.workers:
            life = worker.spec.life
            require(worker.pages_free == self.free(life), f"{life}: {worker.pages_free} pages free in the ledger")
            require(worker.outstanding_prefill_tokens == self.outstanding(life), f"{life}: outstanding")
            require(worker.draining == (life in self.draining), f"{life}: draining")
