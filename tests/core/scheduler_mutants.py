"""Scheduler cores with one rule broken each, and the storms that must notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from common.core import fleet, recovery, scheduler
from common.core.block_flow import BlockFlow
from common.core.block_placer import BlockPlacer
from common.core.fleet import Fleet
from common.core.ids import CallId, RequestId, ServingMode, WorkerLife
from common.core.pages import PageLedger
from common.core.placement import BlockNeed, Policy
from common.core.prefill_turns import PrefillTurns
from common.core.recovery import Failure
from common.core.request import BlockState, Request
from common.core.request_book import RequestBook
from common.core.roster import Roster
from common.core.timers import TimerKind
from common.core.waiting_line import TenantLine, Waiter, WaitingLine
from common.core.work import KvTransfer, RequestSpec, StepDelta
from common.core.worker_account import WorkerAccount
from common.errors import Reason
from tests.core.random_cluster import RandomCluster, random_options

STORMS = 10


def answers_any_call(patch: pytest.MonkeyPatch) -> None:
    """An answer counts for the request's newest call, whichever call it answers."""
    right, owners = BlockFlow.live, dict[CallId, RequestId]()

    def live(self: BlockFlow, call_id: CallId) -> Any:
        found = right(self, call_id)
        if found is not None:
            owners[call_id] = found[1].id
            return found
        request = self.book.get(owners[call_id]) if call_id in owners else None
        return right(self, request.call.call_id) if request is not None and request.call is not None else None

    opened = BlockFlow.open_call

    def open_call(self: BlockFlow, request: Request, account: WorkerAccount, kind: Any) -> Any:
        call = opened(self, request, account, kind)
        owners[call.call_id] = request.id
        return call

    patch.setattr(BlockFlow, "live", live)
    patch.setattr(BlockFlow, "open_call", open_call)


def never_counts_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "start_attempt", lambda self: self.revealed.clear())


def releases_twice(patch: pytest.MonkeyPatch) -> None:
    right = PageLedger.release

    def release(self: PageLedger[Any], holder: Any) -> int:
        pages = right(self, holder)
        self.free_pages += pages
        return pages

    patch.setattr(PageLedger, "release", release)


def ignores_the_backlog(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestBook, "backlog_tokens", property(lambda self: 0))


def lets_the_smallest_pass(patch: pytest.MonkeyPatch) -> None:
    def smallest(self: RequestBook, now: float) -> Request | None:
        waiting = [request for request in self._requests.values() if request.id in self._prefill_line]
        return min(waiting, key=lambda request: (request.spec.canvas_tokens, request.queue_key), default=None)

    patch.setattr(RequestBook, "prefill_head", smallest)


def repeats_what_was_shown(patch: pytest.MonkeyPatch) -> None:
    right = Request.reveal

    def reveal(self: Request, delta: StepDelta) -> tuple[StepDelta | None, int]:
        right(self, delta)
        return delta, 0

    patch.setattr(Request, "reveal", reveal)


def keeps_kv_of_lost_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockFlow, "release_kv", lambda self, handle: None)
    patch.setattr(BlockFlow, "_forget_kv", lambda self, request: setattr(request, "prefilled", None))


def forgets_those_who_wait_at_a_lost_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerAccount, "retained", property(lambda self: []))


def places_on_draining_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fleet, "drain", lambda self, account: setattr(account, "draining", True))


def overflows_at_once(patch: pytest.MonkeyPatch) -> None:
    right = Fleet._pick

    def pick(self: Fleet, policy: Policy, roster: Roster[WorkerAccount], need: BlockNeed) -> WorkerAccount | None:
        passes_over = roster is self._writers and self._config.overflows
        return None if passes_over else right(self, policy, roster, need)

    patch.setattr(Fleet, "_pick", pick)


def newcomers_pass_continuations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "queue_key", property(lambda self: (self.submitted_s + 100.0 * self.block, self.id)))


def sleeps_when_a_waiting_head_leaves(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.end_early

    def end_early(self: BlockFlow, *args: Any, **kwargs: Any) -> None:
        before = self.changed
        right(self, *args, **kwargs)
        self.changed = before

    patch.setattr(BlockFlow, "end_early", end_early)


def lets_a_low_priority_pass(patch: pytest.MonkeyPatch) -> None:
    right = TenantLine.push
    patch.setattr(TenantLine, "push", lambda self, waiter: right(self, replace(waiter, rank=())))


def takes_the_longest_rest_first(patch: pytest.MonkeyPatch) -> None:
    right = TenantLine.push

    def push(self: TenantLine, waiter: Waiter) -> None:
        priority, *rest = waiter.rank
        right(self, replace(waiter, rank=(priority, *(-blocks for blocks in rest))))

    patch.setattr(TenantLine, "push", push)


def has_endless_patience(patch: pytest.MonkeyPatch) -> None:
    right = TenantLine.head
    patch.setattr(TenantLine, "head", lambda self, now: right(self, float("-inf")))


def gives_every_tenant_one_turn(patch: pytest.MonkeyPatch) -> None:
    """Rounds of blocks, not of tokens."""
    right = WaitingLine.push

    def push(self: WaitingLine, waiter: Waiter) -> None:
        right(self, replace(waiter, canvas_tokens=self._quantum_tokens * self._weights.get(waiter.tenant, 1)))

    patch.setattr(WaitingLine, "push", push)


def knows_no_tenants(patch: pytest.MonkeyPatch) -> None:
    right = WaitingLine.push
    patch.setattr(WaitingLine, "push", lambda self, waiter: right(self, replace(waiter, tenant="")))


def binds_late_ones_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "bindable_tokens", lambda account, dispatch_ahead: None)


def gives_more_than_is_wanted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "wanted_tokens", lambda account: None)


def forgets_the_fixed_canvas(patch: pytest.MonkeyPatch) -> None:
    right = RequestSpec.generated_tokens
    patch.setattr(RequestSpec, "generated_tokens", lambda self, max_gen_len_tokens=0: right(self))


def never_wakes_after_a_back_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fleet, "wake", lambda self, worker_id: None)


def counts_a_failed_reader_as_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def retries(flow: BlockFlow, failure: Failure) -> None:
        flow.retry(failure.request, failure.reason)

    patch.setattr(recovery, "_READER_RULES", dict.fromkeys(recovery._READER_RULES, retries))


def loses_the_attempt_with_its_reader(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.lose

    def lose(self: BlockFlow, life: WorkerLife) -> None:
        requests = [self.book.get(call.request_id) for call in self.calls.values() if call.target == life]
        reading = [r for r in requests if r is not None and r.reader is not None and r.reader.target == life]
        right(self, life)
        for request in reading:
            self.retry(request, Reason.PEER_LOST)

    patch.setattr(BlockFlow, "lose", lose)


def lets_readers_wait_for_lost_prefills(patch: pytest.MonkeyPatch) -> None:
    given_up = BlockFlow._give_up

    def give_up(self: BlockFlow, request: Request) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(BlockFlow, "end_reader", lambda self, request, cancel: None)
            given_up(self, request)
        request.reader = None

    patch.setattr(BlockFlow, "_give_up", give_up)


def lets_readers_wait_for_what_was_not_kept(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.end_reader

    def end_reader(self: BlockFlow, request: Request, *, cancel: bool) -> None:
        finished = cancel and request.call is None and request.block_state is BlockState.PREFILLING
        if not finished:
            right(self, request, cancel=cancel)
        request.reader = None

    patch.setattr(BlockFlow, "end_reader", end_reader)


def keeps_the_pages_of_failed_readers(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.end_reader

    def end_reader(self: BlockFlow, request: Request, *, cancel: bool) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(WorkerAccount, "close_call", lambda self, call_id: None)
            right(self, request, cancel=cancel)

    patch.setattr(BlockFlow, "end_reader", end_reader)


def reads_long_before_the_turn(patch: pytest.MonkeyPatch) -> None:
    right = PrefillTurns.__init__
    patch.setattr(PrefillTurns, "__init__", lambda self, batch_tokens: right(self, 1 << 60))


def reads_only_what_is_first(patch: pytest.MonkeyPatch) -> None:
    right = PrefillTurns.__init__
    patch.setattr(PrefillTurns, "__init__", lambda self, batch_tokens: right(self, 0))


def reads_early_before_those_who_wait(patch: pytest.MonkeyPatch) -> None:
    def reader_head(self: RequestBook) -> Request | None:
        head = self._early_line.peek()
        return None if head is None else self._requests[head[0]]

    patch.setattr(RequestBook, "reader_head", reader_head)
    patch.setattr(BlockPlacer, "_place_decode_head", _readers_first(BlockPlacer._place_decode_head))


def _readers_first(right: Callable[[BlockPlacer], bool]) -> Callable[[BlockPlacer], bool]:
    return lambda self: self._place_reader_head() or right(self)


def reads_early_what_an_overflow_needs(patch: pytest.MonkeyPatch) -> None:
    right = Fleet.early_target

    def early_target(self: Fleet, need: BlockNeed, **kwargs: Any) -> WorkerAccount | None:
        return right(self, need, **{**kwargs, "overflow_canvas_tokens": 0})

    patch.setattr(Fleet, "early_target", early_target)


def reads_a_second_time(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.end_reader

    def end_reader(self: BlockFlow, request: Request, *, cancel: bool) -> None:
        right(self, request, cancel=cancel)
        if not cancel and request.call is not None:
            self.book.wait_reader(request)

    patch.setattr(BlockFlow, "end_reader", end_reader)


def keeps_the_name_of_a_cancelled_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "rename_attempt", lambda self: None)


def counts_the_new_name_as_an_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "rename_attempt", lambda self: setattr(self, "attempt", self.attempt + 1))


def drops_what_a_reader_brought(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.reveal

    def reveal(self: BlockFlow, request: Request, delta: StepDelta) -> None:
        if delta.step or request.reader is None or request.call is not None:
            right(self, request, delta)

    patch.setattr(BlockFlow, "reveal", reveal)


def waits_for_a_prefill_that_its_reader_has_whole(patch: pytest.MonkeyPatch) -> None:
    def early_kv(flow: BlockFlow, request: Request, first: StepDelta, transfer: KvTransfer) -> None:
        flow.reveal(request, first)

    patch.setattr(scheduler, "early_kv", early_kv)


def waits_for_a_reader_for_ever(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.rely_on_reader

    def rely_on_reader(self: BlockFlow, request: Request, prefilled_s: float) -> None:
        right(self, request, prefilled_s)
        self.timers.cancel(TimerKind.LEASE, request.id)

    patch.setattr(BlockFlow, "rely_on_reader", rely_on_reader)


_ALL: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    answers_any_call,
    never_counts_attempts,
    releases_twice,
    ignores_the_backlog,
    lets_the_smallest_pass,
    repeats_what_was_shown,
    keeps_kv_of_lost_attempts,
    forgets_those_who_wait_at_a_lost_worker,
    places_on_draining_workers,
    overflows_at_once,
    newcomers_pass_continuations,
    sleeps_when_a_waiting_head_leaves,
    lets_a_low_priority_pass,
    takes_the_longest_rest_first,
    has_endless_patience,
    gives_every_tenant_one_turn,
    knows_no_tenants,
    binds_late_ones_at_once,
    gives_more_than_is_wanted,
    forgets_the_fixed_canvas,
    never_wakes_after_a_back_off,
    counts_a_failed_reader_as_an_attempt,
    loses_the_attempt_with_its_reader,
    lets_readers_wait_for_lost_prefills,
    lets_readers_wait_for_what_was_not_kept,
    keeps_the_pages_of_failed_readers,
    reads_long_before_the_turn,
    reads_only_what_is_first,
    reads_early_before_those_who_wait,
    reads_early_what_an_overflow_needs,
    reads_a_second_time,
    keeps_the_name_of_a_cancelled_attempt,
    counts_the_new_name_as_an_attempt,
    drops_what_a_reader_brought,
    waits_for_a_prefill_that_its_reader_has_whole,
    waits_for_a_reader_for_ever,
)
MUTANTS = {mutate.__name__.replace("_", " "): mutate for mutate in _ALL}


def killer_of(name: str) -> str | None:
    """Which run of the storms catches that mutant, and how; None: it survives them all."""
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        for any_options in (False, True):
            for seed in range(STORMS):
                for mode in reversed(ServingMode):
                    words = _objection(mode, seed, any_options=any_options)
                    if words is not None:
                        return f"{mode.value} storm {seed}{' with options' if any_options else ''}: {words}"
    return None


def _objection(mode: ServingMode, seed: int, *, any_options: bool) -> str | None:
    rng = random.Random(seed)
    cluster = RandomCluster(mode, rng, **(random_options(rng) if any_options else {}))
    try:
        cluster.run(300)
        cluster.rest()
    except (AssertionError, KeyError) as objection:
        # The oracle's, or the core's own: it asserts what it relies on.
        return str(objection)
    return None
