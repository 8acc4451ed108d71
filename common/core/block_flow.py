"""Moves blocks through their lives: every step changes record, ledger and lines together, and says what it takes.

`SchedulerCore` decides when; nothing here chooses a worker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

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
from common.core.fleet import Fleet
from common.core.ids import CallId, Role, ServingMode, WorkerId, WorkerLife
from common.core.kept_share import KeptShares
from common.core.reasons import message_for
from common.core.request import BlockState, Call, CallKind, Prefilled, Request, RequestState, told
from common.core.request_book import RequestBook
from common.core.scheduler_config import SchedulerConfig
from common.core.threshold_tuner import ThresholdTuner
from common.core.timers import TimerKind, Timers
from common.core.work import BlockCompletion, KvHandle, KvSource, KvTransfer, LocalPrefill, NoKv, RemoteKv, StepDelta
from common.core.worker_account import WorkerAccount
from common.errors import Reason


class BlockFlow:
    """State of the scheduler and its primitive moves. `now` is set by the core before each event.

    `changed` becomes True whenever something was freed or began to wait, so that placement is worth another look.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.fleet = Fleet(config)
        self.book = RequestBook(config)
        self.timers = Timers()
        self.tuner = ThresholdTuner(
            threshold_tokens=config.overload_threshold_tokens, adapts=config.overload_threshold_adapts
        )
        self.now = 0.0
        self.changed = False
        self.replay_divergences = 0
        self.retried_blocks: Counter[Reason] = Counter()
        self.placements = 0
        self.kept_shares = KeptShares(config.min_kept_share)
        self.early_readers = 0
        self.early_readers_unused = 0
        self.last_prefill_worker_id: WorkerId | None = None
        self.last_decode_worker_id: WorkerId | None = None
        self.calls: dict[CallId, Call] = {}
        self._effects: list[SchedulerEffect] = []

    def take_effects(self) -> list[SchedulerEffect]:
        """Effects since the last time, in order."""
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: SchedulerEffect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def live(self, call_id: CallId) -> tuple[Call, Request, WorkerAccount] | None:
        """The call with its request and worker, if it is still its request's newest; else its answer is dropped."""
        call = self.calls.get(call_id)
        if call is None:
            return None
        request = self.book.get(call.request_id)
        account = self.fleet.get(call.target)
        assert request is not None and account is not None, call
        assert call is request.call or call is request.reader, call
        return call, request, account

    def must_rest(self, request: Request, account: WorkerAccount) -> bool:
        """Whether the request is idle and the worker is not: no block that somebody waits for shares its forwards."""
        return request.spec.idle and account.live_blocks > 0

    def start_prefill(self, request: Request, account: WorkerAccount) -> None:
        """Place the block's prefill; on a decode worker the whole block runs there."""
        local = account.spec.role is Role.DECODE
        call = self._place(request, account, CallKind.LOCAL_DECODE if local else CallKind.PREFILL)
        overflow = local and self.config.mode is ServingMode.HYBRID
        request.cost.begin_attempt(prefill_worker_id=account.life.worker_id, overflow=overflow)
        request.home = account.spec
        if not request.spec.idle:
            self.tuner.placed(request.canvas_tokens)
        if not overflow and not request.spec.idle:
            self.last_prefill_worker_id = account.life.worker_id
        if local:
            self._call_decode(request, call, LocalPrefill(), BlockState.DECODING)
            return
        request.move(BlockState.PREFILLING, self.now)
        self.emit(
            CallPrefill(
                call_id=call.call_id, target=call.target, work=request.work(), deadline_s=self._time_left_s(request)
            )
        )
        self._note_turns(account)

    def start_decode(self, request: Request, account: WorkerAccount) -> None:
        """Place a prefilled block's decode."""
        prefilled = request.prefilled
        assert prefilled is not None, request.id
        self.timers.cancel(TimerKind.LEASE, request.id)
        if not request.spec.idle:
            self.last_decode_worker_id = account.life.worker_id
        if prefilled.handle is None:
            call = self._place(request, account, CallKind.NO_KV_DECODE)
            self._call_decode(request, call, NoKv(first=prefilled.first), BlockState.DECODING)
            return
        handle = replace(prefilled.handle, lease_s=prefilled.lease_ends_s - self.now)
        call = self._place(request, account, CallKind.REMOTE_DECODE)
        self._call_decode(request, call, RemoteKv(handle=handle, first=prefilled.first), BlockState.TRANSFERRING)

    def open_call(self, request: Request, account: WorkerAccount, kind: CallKind) -> Call:
        """Reserve what a call needs at its worker, and give it its name."""
        self.placements += 1
        call = Call(
            call_id=CallId(self.placements),
            request_id=request.id,
            target=account.life,
            kind=kind,
            placed_s=self.now,
        )
        account.open_call(
            call.call_id,
            canvas_tokens=request.canvas_tokens,
            prefills=kind in (CallKind.PREFILL, CallKind.LOCAL_DECODE),
            decode_step_tokens=None if kind is CallKind.PREFILL else request.decode_step_tokens,
        )
        self.calls[call.call_id] = call
        return call

    def emit_decode(self, request: Request, call: Call, source: KvSource) -> None:
        """Make a Decode call."""
        self.emit(
            CallDecode(
                call_id=call.call_id,
                target=call.target,
                work=request.work(),
                source=source,
                deadline_s=self._time_left_s(request),
            )
        )

    def end_reader(self, request: Request, *, cancel: bool) -> None:
        """Whoever fetches early does so no longer (`cancel`: by our own order); nothing happens when nobody does."""
        reader, request.reader = request.reader, None
        if reader is not None:
            self.early_readers_unused += 1
            self._close_call(request, reader, cancel=cancel)

    def end_call(self, request: Request, *, cancel: bool) -> None:
        """The request's call is over (`cancel`: by our own order); its reservations come back."""
        call = request.call
        assert call is not None, request.id
        account = self._close_call(request, call, cancel=cancel)
        if account is None:
            return
        self._note_turns(account)
        if cancel and call.kind is CallKind.PREFILL:
            # Its answer may be on the way already, with K/V kept for a decode that will not come.
            self.emit(ReleaseKv(owner=call.target, attempt=request.block_attempt))

    def keep_prefilled(self, request: Request, account: WorkerAccount, first: StepDelta, kv: KvHandle | None) -> None:
        """The prefill is done and the block needs a decode: its K/V stays at the owner (None: cache mode none)."""
        lease_ends_s = float("inf")
        if kv is None:
            self.end_call(request, cancel=False)
        else:
            call = request.call
            assert call is not None, request.id
            self._forget_call(request, call)
            account.retain(call.call_id, request.block_attempt)
            self._note_turns(account)
            lease_ends_s = self.now + kv.lease_s
        request.prefilled = Prefilled(owner=account.spec, first=first, handle=kv, lease_ends_s=lease_ends_s)
        if request.reader is None:
            self.await_decode(request)
        else:
            self.rely_on_reader(request, self.now)

    def rely_on_reader(self, request: Request, prefilled_s: float) -> None:
        """The prefill has ended, at `prefilled_s`: the block's call is now that of its early reader."""
        request.call, request.reader = request.reader, None
        assert request.call is not None, request.id
        request.move(BlockState.KV_READY, self.now)
        request.move(BlockState.TRANSFERRING, self.now)
        request.cost.begin_decode(prefilled_s, decode_worker_id=request.call.target.worker_id)
        if request.prefilled is not None:
            # Its own time is longer: it had the prefill to wait for.
            self.timers.set(TimerKind.LEASE, request.id, request.prefilled.lease_ends_s)

    def await_decode(self, request: Request) -> None:
        """Wait for decode memory with what the prefill left."""
        prefilled = request.prefilled
        assert prefilled is not None, request.id
        request.move(BlockState.KV_READY, self.now)
        request.cost.wait(self.now)
        self.book.wait_decode(request)
        if prefilled.handle is not None:
            self.timers.set(TimerKind.LEASE, request.id, prefilled.lease_ends_s)
        self.changed = True

    def await_prefill(self, request: Request) -> None:
        """Wait for a prefill, as the current attempt."""
        request.move(BlockState.WAITING_PREFILL, self.now)
        request.cost.wait(self.now)
        self.book.wait_prefill(request)
        self.changed = True

    def await_other_prefill(self, request: Request) -> None:
        """The prefill was refused: the current try waits for another, and whoever was to read this one is cancelled."""
        if request.reader is not None:
            self.end_reader(request, cancel=True)
            request.rename_attempt()
        self.await_prefill(request)

    def has_kv(self, request: Request) -> bool:
        """Whether what the prefill left can still be decoded from (always so in cache mode none)."""
        prefilled = request.prefilled
        if prefilled is None or prefilled.handle is None:
            return prefilled is not None
        account = self.fleet.get(prefilled.owner.life)
        held = account is not None and request.block_attempt in account.pages.held
        return held and prefilled.lease_ends_s > self.now

    def kv_arrived(self, request: Request, transfer: KvTransfer) -> None:
        """The decode worker holds the K/V: the prefill side's pages are free."""
        self._forget_kv(request)
        request.cost.kv_arrived(transfer)
        request.move(BlockState.DECODING, self.now)

    def release_kv(self, handle: KvHandle) -> None:
        """An answer nobody waits for left K/V behind: have it freed, unless it is what the request lives on."""
        request = self.book.get(handle.attempt.request_id)
        current = request is not None and request.block_attempt == handle.attempt
        if not current and self.fleet.get(handle.owner) is not None:
            self.emit(ReleaseKv(owner=handle.owner, attempt=handle.attempt))

    def retry(self, request: Request, cause: Reason) -> None:
        """Give the current attempt up; the next one starts at the prefill, or the request fails at the limit."""
        self._give_up(request)
        request.start_attempt()
        if request.tries > self.config.max_attempts:
            self.fail(request, Reason.ATTEMPTS_EXHAUSTED)
        else:
            self.retried_blocks[cause] += 1
            self.await_prefill(request)

    def reveal(self, request: Request, delta: StepDelta) -> None:
        """Publish what is new in a well-formed delta."""
        fresh, differing = request.reveal(delta)
        self.replay_divergences += differing
        if fresh is not None:
            self.emit(PublishStep(request_id=request.id, block=request.block, step=fresh))

    def commit(self, request: Request, completion: BlockCompletion) -> None:
        """The block's last call has ended with this completion: on to the next block, or done."""
        if not request.is_complete(completion):
            self.fail(request, Reason.INTERNAL, why=f"a block ended with tokens missing or too many: {completion}")
            return
        request.move(BlockState.COMMITTED, self.now)
        placement = request.cost.placement(
            block=request.block, attempts=request.tries, completion=completion, now=self.now
        )
        self.emit(PublishBlock(request_id=request.id, placement=placement))
        if completion.finish is not None:
            self._close(request, RequestState.FINISHED)
            self.emit(FinishRequest(request_id=request.id, finish=completion.finish))
            return
        request.start_next_block(self.now)
        self.await_prefill(request)

    def fail(self, request: Request, reason: Reason, *, message: str = "", field: str = "", why: str = "") -> None:
        """End the request badly, wherever it is; all it holds is freed. `why` is told to the log only."""
        self.end_early(request, RequestState.FAILED, reason, message=message, field=field, why=why)

    def end_early(
        self, request: Request, end: RequestState, reason: Reason, *, message: str = "", field: str = "", why: str = ""
    ) -> None:
        """End the request before its time: FAILED or CANCELLED."""
        story = f"{why} ({request.block_attempt}; story: {told(request.story)})"
        self._give_up(request)
        self._close(request, end)
        text = message or message_for(reason)
        self.emit(FailRequest(request_id=request.id, reason=reason, message=text, field=field, story=story))

    def lose(self, life: WorkerLife) -> None:
        """That life is over: its calls and the K/V it kept are gone. Knowing so twice changes nothing."""
        account = self.fleet.remove(life)
        if account is None:
            return
        self.changed = True
        self.emit(FenceWorker(life=life))
        for call_id in account.calls:
            request = self.book.get(self.calls[call_id].request_id)
            assert request is not None, call_id
            if request.reader is not None and request.reader.call_id == call_id:
                self.end_reader(request, cancel=True)
            else:
                self.retry(request, Reason.PEER_LOST)
        for attempt in account.retained:
            request = self.book.get(attempt.request_id)
            # A transfer under way may have brought everything across; its own call will say.
            if request is not None and request.block_state is BlockState.KV_READY and request.block_attempt == attempt:
                self.retry(request, Reason.PEER_LOST)

    def back_off(self, account: WorkerAccount, until_s: float) -> None:
        """Give the worker nothing new until then."""
        account.back_off(until_s)
        self.timers.set(TimerKind.BACKOFF, account.life.worker_id, account.backoff_until_s)

    def suspect(self, account: WorkerAccount) -> None:
        """A call involving the worker broke. Failures during a back-off are part of the same incident."""
        if account.backoff_until_s <= self.now:
            until_s = account.suspect(self.now, first_s=self.config.peer_backoff_s)
            self.timers.set(TimerKind.BACKOFF, account.life.worker_id, until_s)

    def _place(self, request: Request, account: WorkerAccount, kind: CallKind) -> Call:
        assert request.call is None, request.id
        self.book.leave_lines(request, placed=True)
        self.book.mark_running(request, self.now)
        request.call = self.open_call(request, account, kind)
        request.cost.place(self.now)
        return request.call

    def _note_turns(self, account: WorkerAccount) -> None:
        """Prefills of that worker have come near their turn: who decodes them may be chosen."""
        if not self.config.kv_overlap or not account.spec.kv_address:
            return
        for call_id in account.turns.come_near():
            request = self.book.get(self.calls[call_id].request_id)
            assert request is not None, call_id
            if self.kept_shares.suffice_for(request.spec):
                self.book.wait_reader(request)
                self.changed = True

    def _call_decode(self, request: Request, call: Call, source: KvSource, state: BlockState) -> None:
        request.cost.begin_decode(self.now, decode_worker_id=call.target.worker_id)
        request.move(state, self.now)
        self.emit_decode(request, call, source)

    def _close_call(self, request: Request, call: Call, *, cancel: bool) -> WorkerAccount | None:
        """Give back what the call reserved; its worker's account, or None when that life is over."""
        self._forget_call(request, call)
        account = self.fleet.get(call.target)
        if account is not None:
            account.close_call(call.call_id)
        if cancel:
            self.emit(CancelCall(call_id=call.call_id))
        return account

    def _forget_call(self, request: Request, call: Call) -> None:
        del self.calls[call.call_id]
        if request.call is call:
            request.call = None
            self.book.leave_early_line(request)
        self.changed = True

    def _forget_kv(self, request: Request) -> bool:
        """Stop counting the K/V kept for the request; True when it was counted until now."""
        prefilled, request.prefilled = request.prefilled, None
        if prefilled is None or prefilled.handle is None:
            return False
        self.timers.cancel(TimerKind.LEASE, request.id)
        account = self.fleet.get(prefilled.owner.life)
        released = account is not None and account.release_retained(request.block_attempt)
        self.changed |= released
        return released

    def _give_up(self, request: Request) -> None:
        """Cancel the request's call, free its K/V, leave its line."""
        self.book.leave_lines(request)
        self.end_reader(request, cancel=True)
        if request.call is not None:
            self.end_call(request, cancel=True)
        prefilled = request.prefilled
        if self._forget_kv(request) and prefilled is not None:
            self.emit(ReleaseKv(owner=prefilled.owner.life, attempt=request.block_attempt))

    def _close(self, request: Request, end: RequestState) -> None:
        self.timers.cancel(TimerKind.DEADLINE, request.id)
        self.book.close(request, end, self.now)
        # Even one that held nothing may have been the head that others waited behind.
        self.changed = True

    def _time_left_s(self, request: Request) -> float | None:
        return None if request.deadline_at_s is None else request.deadline_at_s - self.now
