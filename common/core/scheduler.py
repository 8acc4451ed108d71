"""The scheduler's policy: requests, ledger and placement in all three modes. Events in, effects out.

One queue over new requests and continuation blocks, strict head of line; which block is the head is the
`WaitingLine`'s business, which worker gets it the `Fleet`'s (reference notes, algorithms, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from common.core.block_cost import NO_TRANSFER
from common.core.block_flow import BlockFlow
from common.core.block_placer import BlockPlacer
from common.core.cluster import ClusterView, WorkerSpec
from common.core.early_reading import early_kv
from common.core.effects import FinishRequest, PublishStep, SchedulerEffect
from common.core.events import (
    CallFailed,
    DecodeCompleted,
    DecodeKvReceived,
    DecodeStepped,
    KvLeaseEnded,
    PrefillCompleted,
    RequestCancelled,
    RequestSubmitted,
    SchedulerEvent,
    Tick,
    WorkerDraining,
    WorkerLost,
    WorkerRegistered,
    WorkerReported,
)
from common.core.ids import RequestId, WorkerId, WorkerLife
from common.core.options import Dispatch
from common.core.params import CacheMode
from common.core.recovery import Failure, recover
from common.core.request import BlockState, Call, CallKind, Request, RequestState, unlawful
from common.core.scheduler_books import SchedulerBooks
from common.core.scheduler_config import SchedulerConfig
from common.core.submission import check_fits, check_length, check_room, check_spec, duplicate_id
from common.core.timers import TimerKind
from common.core.unowned import Unowned
from common.core.work import FinishReason, IterationReport, RequestSpec, StepDelta, WaitReason
from common.core.worker_account import WorkerAccount
from common.errors import Reason, WireError


class SchedulerCore:
    """Decides what runs where. Each effect's outcome must come back as an event; order per call is kept by the shell.

    Every request that was taken in ends with exactly one FinishRequest or FailRequest, also a cancelled one.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._flow = BlockFlow(config)
        self._placer = BlockPlacer(self._flow)
        self._books = SchedulerBooks(self._flow)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerEffect]:
        """Take in one fact at time `now` (monotonic seconds).

        Raises `WireError` for a RequestSubmitted that is refused, before anything has changed; never otherwise.
        """
        self._flow.now = now
        if isinstance(event, RequestSubmitted):
            self._check_submission(event.spec)
        self._ring_due()
        _HANDLERS[type(event)](self, event)
        if self._flow.changed:
            self._placer.place()
        return self._flow.take_effects()

    def next_wakeup(self) -> float | None:
        """When a Tick is due, or None."""
        return self._flow.timers.next_due()

    def is_live(self, life: WorkerLife) -> bool:
        """Whether that life is registered and not over; a WorkerRegistered of an ended life changes nothing."""
        return self._flow.fleet.get(life) is not None

    def check_model(self, worker: WorkerSpec) -> None:
        """Raise `WireError` LAYOUT_MISMATCH for a worker whose blocks would not continue those of the live workers."""
        other = self._flow.fleet.other_model(worker)
        if other is not None:
            problem = f"{worker.life.worker_id} has other weights or another dtype than {other}, which is live"
            raise WireError(Reason.LAYOUT_MISMATCH, problem)

    def least_incarnation(self, worker_id: WorkerId) -> int:
        """Smallest incarnation with which a further life of that worker may register."""
        return self._flow.fleet.least_incarnation(worker_id)

    @property
    def queued_blocks(self) -> int:
        """Blocks waiting for a prefill."""
        return self._flow.book.queued_blocks

    def so_far(self, spec: RequestSpec) -> PublishStep | None:
        """All tokens that the living request has which `spec` asks for, as one step; None when there is no such one.

        One that was resumed with other tokens is another: its client would get text of two minds.
        """
        request = self._flow.book.get(spec.request_id)
        if request is None or not request.is_asked_for_by(spec):
            return None
        tokens = request.tokens
        positions, token_ids = zip(*tokens, strict=True) if tokens else ((), ())
        delta = StepDelta(step=0, positions=positions, token_ids=token_ids, confidences=(1.0,) * len(positions))
        return PublishStep(request_id=request.id, block=request.block, step=delta)

    def view(self) -> ClusterView:
        """A frozen snapshot."""
        book, fleet = self._flow.book, self._flow.fleet
        return ClusterView(
            mode=self._config.mode,
            workers=tuple(account.view() for account in fleet.accounts),
            queued_blocks=book.queued_blocks,
            parked_blocks=book.parked_blocks,
            waiting_decode_blocks=book.waiting_decode_blocks,
            running_requests=len(book),
            ended_requests=book.ended_requests,
            overload_threshold_tokens=self._flow.fleet.threshold_tokens,
            overload_threshold_adapts=self._config.overload_threshold_adapts,
            replay_divergences=self._flow.replay_divergences,
            waiting_idle_blocks=book.waiting_idle_blocks,
            retried_blocks=tuple(self._flow.retried_blocks.items()),
            early_readers=self._flow.early_readers,
            early_readers_unused=self._flow.early_readers_unused,
        )

    def unservable(self) -> dict[RequestId, WaitReason]:
        """Requests that wait for a worker that is not there, and why."""
        return self._flow.book.unservable(self._flow.fleet.canvas_limit_tokens)

    def check_conservation(self) -> None:
        """Assert that records, ledger and lines agree, and that an idle scheduler holds nothing."""
        self._books.check()

    def unowned(self, clients: Collection[str]) -> list[Unowned]:
        """What is held for nobody, at any moment; empty unless there is a bug. `clients`: who waits for a request."""
        return self._books.unowned(clients)

    # Requests

    def _check_submission(self, spec: RequestSpec) -> None:
        check_spec(spec)
        if spec.request_id in self._flow.book:
            raise duplicate_id(spec)
        check_length(spec, self._config.max_gen_len_tokens)
        limit_tokens = self._flow.fleet.canvas_limit_tokens
        if limit_tokens is not None:
            check_fits(spec, limit_tokens, max_gen_len_tokens=self._config.max_gen_len_tokens)
        check_room(self._flow.book.waiting_like(spec), self._config.max_waiting(spec))

    def _on_submitted(self, event: RequestSubmitted) -> None:
        spec = event.spec
        if len(spec.committed_token_ids) == spec.blocks * spec.block_length_tokens:
            # Resumed after its last block was committed, before the client was told so.
            self._flow.emit(FinishRequest(request_id=spec.request_id, finish=FinishReason.LENGTH))
            return
        fits_known = self._flow.fleet.canvas_limit_tokens is not None
        request = Request.submitted(
            spec, self._flow.now, fits_known=fits_known, max_gen_len_tokens=self._config.max_gen_len_tokens
        )
        self._flow.book.open(request)
        self._flow.changed = True
        if request.deadline_at_s is not None:
            self._flow.timers.set(TimerKind.DEADLINE, request.id, request.deadline_at_s)

    def _on_cancelled(self, event: RequestCancelled) -> None:
        request = self._flow.book.get(event.request_id)
        if request is not None:
            self._flow.end_early(request, RequestState.CANCELLED, event.reason)

    # Workers

    def _on_registered(self, event: WorkerRegistered) -> None:
        flow, life = self._flow, event.worker.life
        if flow.fleet.is_stale(life) or flow.fleet.get(life) is not None:
            return
        older = flow.fleet.current(life.worker_id)
        if older is not None:
            flow.lose(older.life)
        flow.fleet.add(event.worker)
        flow.changed = True
        if flow.book.parked_blocks and flow.fleet.canvas_limit_tokens is not None:
            flow.book.unpark(flow.fleet.canvas_limit_tokens)

    def _on_lost(self, event: WorkerLost) -> None:
        self._flow.lose(event.life)

    def _on_draining(self, event: WorkerDraining) -> None:
        account = self._flow.fleet.get(event.life)
        if account is not None and not account.draining:
            self._flow.fleet.drain(account)
            self._flow.changed = True

    def _on_reported(self, event: WorkerReported) -> None:
        account = self._flow.fleet.get(event.life)
        if account is None:
            return
        wanted = account.says_what_it_wants
        account.hear(event.report)
        if self._config.overload_threshold_adapts:
            self._tune(account, event.report)
        if self._config.dispatch is Dispatch.LATE or wanted or account.says_what_it_wants:
            # A larger deficit or budget, or another number of wanted blocks, may let it take what it could not.
            self._flow.changed = True

    def _tune(self, account: WorkerAccount, report: IterationReport) -> None:
        flow, before = self._flow, self._flow.fleet.threshold_tokens
        flow.tuner.observe(
            account.spec.role,
            report,
            outstanding_tokens=account.outstanding_prefill_tokens,
            budget_tokens=account.token_budget_tokens,
        )
        flow.fleet.threshold_tokens = flow.tuner.move(flow.now)
        flow.changed |= flow.fleet.threshold_tokens != before

    def _on_lease_ended(self, event: KvLeaseEnded) -> None:
        flow = self._flow
        account = flow.fleet.get(event.owner)
        if account is None or not account.release_retained(event.attempt):
            return
        flow.changed = True
        request = flow.book.get(event.attempt.request_id)
        # In a transfer the decode call tells how it ended; waiting for decode memory, the K/V is lost.
        if request is not None and request.block_state is BlockState.KV_READY:
            flow.retry(request, Reason.KV_LEASE_EXPIRED)

    # Calls

    def _on_prefill_completed(self, event: PrefillCompleted) -> None:
        flow = self._flow
        found = flow.live(event.call_id)
        if found is None:
            if event.kv is not None:
                flow.release_kv(event.kv)
            return
        call, request, account = found
        account.trust()
        request.cost.prefill_s = flow.now - call.placed_s
        if not self._is_lawful_prefill(event, call, request):
            flow.fail(request, Reason.INTERNAL, why=unlawful(call, event.first))
            return
        flow.reveal(request, event.first)
        if request.spec.cache_mode is not CacheMode.NONE:
            flow.kept_shares.observe(request.spec.sampling.strategy, event.kv is not None)
        if event.completion is None:
            flow.keep_prefilled(request, account, event.first, event.kv)
            return
        flow.end_call(request, cancel=False)
        flow.end_reader(request, cancel=True)
        flow.commit(request, event.completion)

    @staticmethod
    def _is_lawful_prefill(event: PrefillCompleted, call: Call, request: Request) -> bool:
        if call.kind is not CallKind.PREFILL or not request.is_well_formed(event.first):
            return False
        if event.kv is None:
            return event.completion is not None or request.spec.cache_mode is CacheMode.NONE
        rightful = event.kv.attempt == request.block_attempt and event.kv.owner == call.target
        return rightful and event.completion is None

    def _on_kv_received(self, event: DecodeKvReceived) -> None:
        flow = self._flow
        found = flow.live(event.call_id)
        if found is None:
            return
        call, request, account = found
        account.trust()
        if call is request.reader:
            if event.first is None or not request.is_well_formed(event.first):
                flow.fail(request, Reason.INTERNAL, why=unlawful(call, event.first))
            else:
                early_kv(flow, request, event.first, event.transfer)
        elif request.block_state is BlockState.TRANSFERRING:
            flow.kv_arrived(request, event.transfer)

    def _on_stepped(self, event: DecodeStepped) -> None:
        flow = self._flow
        found = flow.live(event.call_id)
        if found is None:
            return
        call, request, account = found
        lawful = call.kind is not CallKind.PREFILL and call is not request.reader
        if not lawful or not request.is_well_formed(event.step):
            flow.fail(request, Reason.INTERNAL, why=unlawful(call, event.step))
            return
        account.trust()
        if account.prefill_done(call.call_id):
            flow.changed = True
        if request.block_state is BlockState.TRANSFERRING:
            # Who steps has the K/V, whatever became of the message that says so.
            flow.kv_arrived(request, NO_TRANSFER)
        flow.reveal(request, event.step)

    def _on_decode_completed(self, event: DecodeCompleted) -> None:
        flow = self._flow
        found = flow.live(event.call_id)
        if found is None:
            return
        call, request, _ = found
        if request.block_state is not BlockState.DECODING:
            flow.fail(request, Reason.INTERNAL, why=unlawful(call, None))
            return
        flow.end_call(request, cancel=False)
        flow.commit(request, event.completion)

    def _on_call_failed(self, event: CallFailed) -> None:
        found = self._flow.live(event.call_id)
        if found is not None:
            recover(self._flow, Failure(*found, reason=event.reason))

    # Time

    def _on_tick(self, event: Tick) -> None:
        """Timers have rung already; a Tick itself asks for nothing."""

    def _ring_due(self) -> None:
        while (due := self._flow.timers.pop_due(self._flow.now)) is not None:
            kind, name = due
            self._flow.changed = True
            if kind is TimerKind.BACKOFF:
                self._flow.fleet.wake(WorkerId(name))
                continue
            request = self._flow.book.get(RequestId(name))
            if request is None:
                continue
            if kind is TimerKind.DEADLINE:
                self._flow.fail(request, Reason.DEADLINE_EXCEEDED)
            elif request.block_state in (BlockState.KV_READY, BlockState.TRANSFERRING):
                self._flow.retry(request, Reason.KV_LEASE_EXPIRED)


_HANDLERS: Mapping[type, Callable[[SchedulerCore, Any], None]] = MappingProxyType(
    {
        RequestSubmitted: SchedulerCore._on_submitted,
        RequestCancelled: SchedulerCore._on_cancelled,
        WorkerRegistered: SchedulerCore._on_registered,
        WorkerLost: SchedulerCore._on_lost,
        WorkerDraining: SchedulerCore._on_draining,
        WorkerReported: SchedulerCore._on_reported,
        PrefillCompleted: SchedulerCore._on_prefill_completed,
        DecodeKvReceived: SchedulerCore._on_kv_received,
        DecodeStepped: SchedulerCore._on_stepped,
        DecodeCompleted: SchedulerCore._on_decode_completed,
        CallFailed: SchedulerCore._on_call_failed,
        KvLeaseEnded: SchedulerCore._on_lease_ended,
        Tick: SchedulerCore._on_tick,
    }
)
