"""The scheduler against the paper cluster: random happenings, and mutants that must be caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.core.block_flow import BlockFlow
from common.core.fleet import Fleet
from common.core.ids import CallId, RequestId, ServingMode
from common.core.pages import PageLedger
from common.core.placement import BlockNeed, Policy
from common.core.request import Request
from common.core.request_book import RequestBook
from common.core.roster import Roster
from common.core.work import StepDelta
from common.core.worker_account import WorkerAccount
from tests.core.paper_cluster import Violation
from tests.core.random_cluster import RandomCluster

STORMS = 10
SEEDS = st.integers(min_value=0, max_value=2**20)


class ClusterMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens; the oracle inside `RandomCluster` judges every effect."""

    @initialize(mode=st.sampled_from(list(ServingMode)), seed=SEEDS)
    def begin(self, mode: ServingMode, seed: int) -> None:
        self.cluster = RandomCluster(mode, random.Random(seed))
        for _ in range(3):
            self.cluster.start_worker()

    def _do(self, seed: int, happening: Callable[[], None]) -> None:
        self.cluster.rng = random.Random(seed)
        happening()

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        self._do(seed, self.cluster.submit)

    @rule(seed=SEEDS, times=st.integers(1, 6))
    def answer(self, seed: int, times: int) -> None:
        self.cluster.rng = random.Random(seed)
        for _ in range(times):
            self.cluster.answer()

    @rule(seed=SEEDS)
    def fail(self, seed: int) -> None:
        self._do(seed, self.cluster.fail)

    @rule(seed=SEEDS)
    def cancel(self, seed: int) -> None:
        self._do(seed, self.cluster.cancel)

    @rule(seed=SEEDS)
    def advance(self, seed: int) -> None:
        self._do(seed, self.cluster.advance)

    @rule(seed=SEEDS)
    def echo(self, seed: int) -> None:
        self._do(seed, self.cluster.echo)

    @rule(seed=SEEDS)
    def start_worker(self, seed: int) -> None:
        self._do(seed, self.cluster.start_worker)

    @rule(seed=SEEDS)
    def repeat_worker(self, seed: int) -> None:
        self._do(seed, self.cluster.repeat_worker)

    @rule(seed=SEEDS)
    def lose(self, seed: int) -> None:
        self._do(seed, self.cluster.lose)

    @rule(seed=SEEDS)
    def drain(self, seed: int) -> None:
        self._do(seed, self.cluster.drain)

    @rule(seed=SEEDS)
    def end_lease(self, seed: int) -> None:
        self._do(seed, self.cluster.end_lease)

    @invariant()
    def conserves(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.oracle.core.check_conservation()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.rest()
            self.cluster.oracle.core.check_conservation()


ClusterMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestClusterMachine = ClusterMachine.TestCase


@pytest.mark.parametrize("mode", list(ServingMode))
@pytest.mark.parametrize("seed", range(STORMS))
def test_a_storm_of_happenings_ends_with_every_request_ended_once_and_nothing_held(
    mode: ServingMode, seed: int
) -> None:
    cluster = RandomCluster(mode, random.Random(seed))
    cluster.run(300)
    cluster.oracle.core.check_conservation()
    cluster.rest()
    cluster.oracle.core.check_conservation()
    assert cluster.oracle.ended > 20


def _answers_any_call(patch: pytest.MonkeyPatch) -> None:
    """An answer counts for the request's newest call, whichever call it answers."""
    right, owners = BlockFlow.live, dict[CallId, RequestId]()

    def live(self: BlockFlow, call_id: CallId) -> Any:
        found = right(self, call_id)
        if found is not None:
            owners[call_id] = found[1].id
            return found
        request = self.book.get(owners[call_id]) if call_id in owners else None
        return right(self, request.call.call_id) if request is not None and request.call is not None else None

    opened = BlockFlow._open_call

    def open_call(self: BlockFlow, request: Request, account: WorkerAccount, kind: Any) -> Any:
        call = opened(self, request, account, kind)
        owners[call.call_id] = request.id
        return call

    patch.setattr(BlockFlow, "live", live)
    patch.setattr(BlockFlow, "_open_call", open_call)


def _never_counts_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "start_attempt", lambda self: self.revealed.clear())


def _releases_twice(patch: pytest.MonkeyPatch) -> None:
    right = PageLedger.release

    def release(self: PageLedger[Any], holder: Any) -> int:
        pages = right(self, holder)
        self.free_pages += pages
        return pages

    patch.setattr(PageLedger, "release", release)


def _ignores_the_backlog(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestBook, "backlog_tokens", property(lambda self: 0))


def _lets_the_smallest_pass(patch: pytest.MonkeyPatch) -> None:
    def smallest(self: RequestBook, now: float) -> Request | None:
        waiting = [request for request in self._requests.values() if request.id in self._prefill_line]
        return min(waiting, key=lambda request: (request.spec.canvas_tokens, request.queue_key), default=None)

    patch.setattr(RequestBook, "prefill_head", smallest)


def _repeats_what_was_shown(patch: pytest.MonkeyPatch) -> None:
    right = Request.reveal

    def reveal(self: Request, delta: StepDelta) -> tuple[StepDelta | None, int]:
        right(self, delta)
        return delta, 0

    patch.setattr(Request, "reveal", reveal)


def _keeps_kv_of_lost_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockFlow, "release_kv", lambda self, handle: None)
    patch.setattr(BlockFlow, "_forget_kv", lambda self, request: setattr(request, "prefilled", None))


def _forgets_those_who_wait_at_a_lost_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerAccount, "retained", property(lambda self: []))


def _places_on_draining_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fleet, "drain", lambda self, account: setattr(account, "draining", True))


def _overflows_at_once(patch: pytest.MonkeyPatch) -> None:
    right = Fleet._pick

    def pick(self: Fleet, policy: Policy, roster: Roster[WorkerAccount], need: BlockNeed) -> WorkerAccount | None:
        passes_over = roster is self._writers and self._config.overflows
        return None if passes_over else right(self, policy, roster, need)

    patch.setattr(Fleet, "_pick", pick)


def _newcomers_pass_continuations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "queue_key", property(lambda self: (self.submitted_s + 100.0 * self.block, self.id)))


def _sleeps_when_a_waiting_head_leaves(patch: pytest.MonkeyPatch) -> None:
    right = BlockFlow.end_early

    def end_early(self: BlockFlow, *args: Any, **kwargs: Any) -> None:
        before = self.changed
        right(self, *args, **kwargs)
        self.changed = before

    patch.setattr(BlockFlow, "end_early", end_early)


MUTANTS = [
    _answers_any_call,
    _never_counts_attempts,
    _releases_twice,
    _ignores_the_backlog,
    _lets_the_smallest_pass,
    _repeats_what_was_shown,
    _keeps_kv_of_lost_attempts,
    _forgets_those_who_wait_at_a_lost_worker,
    _places_on_draining_workers,
    _overflows_at_once,
    _newcomers_pass_continuations,
    _sleeps_when_a_waiting_head_leaves,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_the_oracle_kills_the_mutant(mutate: Callable[[pytest.MonkeyPatch], None]) -> None:
    # The unmutated core survives these very runs: they are those of the storm above.
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        assert any(_is_caught(mode, seed) for seed in range(STORMS) for mode in reversed(ServingMode))


def _is_caught(mode: ServingMode, seed: int) -> bool:
    cluster = RandomCluster(mode, random.Random(seed))
    try:
        cluster.run(300)
        cluster.rest()
    except Violation:
        return True
    return False
