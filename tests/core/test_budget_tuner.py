"""The adaptive token budget against a worker whose costs are known, and the adaptive threshold against two rates."""

from __future__ import annotations

import itertools

import pytest

from common.core.budget_tuner import BudgetTuner
from common.core.ids import Role
from common.core.threshold_tuner import ThresholdTuner
from common.core.work import IterationReport
from common.core.worker_iteration import Iteration
from tests.core.worker_work import worker_config

BASE_S, PER_TOKEN_S = 0.020, 0.00005
GAP_S = 0.060
"""With these costs (G - a) / c is 800 tokens."""


class Hardware:
    """Runs iterations of known cost; `wobble` spreads durations by that share, alternately up and down."""

    def __init__(self, *, start_tokens: int = 1024, gap_s: float = GAP_S, wobble: float = 0.0) -> None:
        config = worker_config(
            Role.DECODE, token_budget_tokens=start_tokens, token_budget_adapts=True, target_decode_gap_s=gap_s
        )
        self.tuner = BudgetTuner(config)
        self.wobble, self.now, self.turns = wobble, 0.0, 0

    def run(self, *, decode_tokens: int, prefill_tokens: int) -> float:
        self.turns += 1
        spread = 1.0 + self.wobble * (-1.0) ** self.turns
        duration_s = (BASE_S * (decode_tokens > 0) + PER_TOKEN_S * prefill_tokens) * spread
        self.now += duration_s
        iteration = Iteration(
            number=self.turns, decodes=(), prefills=(), decode_tokens=decode_tokens, prefill_tokens=prefill_tokens
        )
        self.tuner.observe(iteration, duration_s=duration_s, now=self.now)
        return duration_s

    def plan(self, *, decode_tokens: int, waiting_tokens: int) -> int:
        return self.tuner.next_budget_tokens(decode_tokens=decode_tokens, waiting_tokens=waiting_tokens)

    def settle(self, *, waiting_tokens: int, decode_tokens: int = 320, turns: int = 60) -> list[int]:
        """Iterations that use the whole budget, every fourth without a prefill; tau of each."""
        budgets = []
        for turn in range(turns):
            budget = self.plan(decode_tokens=decode_tokens, waiting_tokens=waiting_tokens)
            self.run(decode_tokens=decode_tokens, prefill_tokens=0 if turn % 4 == 0 else budget - decode_tokens)
            budgets.append(budget)
        return budgets


@pytest.mark.parametrize("start_tokens", [16, 1024, 16384])
def test_it_finds_the_budget_that_keeps_the_gap_from_anywhere_and_stays(start_tokens: int) -> None:
    budgets = Hardware(start_tokens=start_tokens).settle(waiting_tokens=1000)
    assert all(abs(budget - (320 + 800)) <= 8 for budget in budgets[-20:])


def test_noise_moves_it_less_than_the_noise() -> None:
    budgets = Hardware(wobble=0.2).settle(waiting_tokens=1000, turns=200)[-50:]
    assert max(budgets) - min(budgets) < 0.2 * 800


def test_it_follows_the_number_of_decodes_at_once() -> None:
    one = Hardware()
    one.settle(waiting_tokens=1000)
    assert one.plan(decode_tokens=3200, waiting_tokens=1000) - one.plan(decode_tokens=32, waiting_tokens=1000) == 3168


def test_a_backlog_is_drained_faster_than_the_gap_allows_and_the_budget_comes_back() -> None:
    one = Hardware()
    one.settle(waiting_tokens=1000)
    assert one.settle(waiting_tokens=16_000)[-1] == 320 + 2000
    assert abs(one.settle(waiting_tokens=1000)[-1] - (320 + 800)) <= 8


def test_steps_are_limited_to_a_quarter() -> None:
    one = Hardware()
    one.settle(waiting_tokens=1000)
    before = one.plan(decode_tokens=0, waiting_tokens=1000)
    after = one.plan(decode_tokens=0, waiting_tokens=10**9)
    assert before < after <= before * 1.25 + 1


def test_a_gap_that_no_worker_can_keep_leaves_prefills_a_minimum() -> None:
    assert Hardware(gap_s=0.001).settle(waiting_tokens=0)[-1] == 320 + 128


def test_it_stays_where_it_starts_until_costs_are_known() -> None:
    one = Hardware(start_tokens=700)
    assert one.plan(decode_tokens=0, waiting_tokens=50_000) == 700
    one.run(decode_tokens=32, prefill_tokens=0)
    assert one.plan(decode_tokens=0, waiting_tokens=50_000) == 700


def test_a_fixed_budget_does_not_move_and_measures_all_the_same() -> None:
    tuner = BudgetTuner(worker_config(Role.DECODE, token_budget_tokens=512))
    step = Iteration(number=1, decodes=(), prefills=(), decode_tokens=32, prefill_tokens=9999)
    for turn in range(50):
        tuner.observe(step, duration_s=1.0, now=1.25 * turn)
    assert tuner.next_budget_tokens(decode_tokens=5000, waiting_tokens=10**6) == tuner.budget_tokens == 512
    assert tuner.last_duration_s == 1.0
    assert tuner.decode_gap_s == pytest.approx(1.25)


def test_a_pause_is_nobodys_gap() -> None:
    one = Hardware()
    for _ in range(3):
        one.run(decode_tokens=32, prefill_tokens=0)
    one.now += 100.0
    one.tuner.pause()
    one.run(decode_tokens=32, prefill_tokens=0)
    one.run(decode_tokens=32, prefill_tokens=0)
    assert one.tuner.decode_gap_s == pytest.approx(BASE_S)


def report(*, duration_s: float, decode_tokens: int = 0, prefill_tokens: int = 0) -> IterationReport:
    return IterationReport(
        iteration=1,
        duration_s=duration_s,
        decode_tokens=decode_tokens,
        prefill_tokens_admitted=prefill_tokens,
        deficit_tokens=0,
        free_pages=0,
        active_decodes=0,
        queued_prefills=0,
        queued_prefill_tokens=0,
        retained_blocks=0,
    )


class TestThreshold:
    def settle(self, tuner: ThresholdTuner, *, waiting: int, seconds: float = 20.0) -> list[int]:
        """Prefill workers do 20000 tokens/s; decode workers take 20 ms per decode-only iteration of 224 tokens."""
        thresholds = []
        for turn in range(int(seconds / 0.1)):
            tuner.placed(1000)
            facts = {"outstanding_tokens": waiting, "budget_tokens": 1024}
            tuner.observe(Role.PREFILL, report(duration_s=0.1, prefill_tokens=2000), **facts)
            tuner.observe(Role.DECODE, report(duration_s=0.02, decode_tokens=224), **facts)
            thresholds.append(tuner.move(0.1 * turn))
        return thresholds

    def test_waits_on_both_sides_become_equal(self) -> None:
        tuner = ThresholdTuner(threshold_tokens=16384, adapts=True)
        # A decode worker gets 800 tokens through in 20 + 40 ms: two thirds of the prefill worker's rate.
        assert self.settle(tuner, waiting=3000)[-1] == pytest.approx(4000 * 20_000 / (800 / 0.06), rel=0.01)

    def test_more_waiting_on_decode_workers_raises_it_and_it_comes_back(self) -> None:
        tuner = ThresholdTuner(threshold_tokens=16384, adapts=True)
        calm = self.settle(tuner, waiting=3000)[-1]
        assert self.settle(tuner, waiting=9000, seconds=40.0)[-1] > 2 * calm

    def test_it_settles_without_swinging(self) -> None:
        thresholds = self.settle(ThresholdTuner(threshold_tokens=16384, adapts=True), waiting=3000, seconds=40.0)
        steps = [after - before for before, after in itertools.pairwise(thresholds)]
        assert all(step <= 0 for step in steps) and not any(steps[-100:])

    @pytest.mark.parametrize(("waiting", "bound"), [(0, 1024), (10**7, 131_072)])
    def test_it_keeps_its_bounds(self, waiting: int, bound: int) -> None:
        tuner = ThresholdTuner(threshold_tokens=16384, adapts=True)
        for turn in range(400):
            facts = {"outstanding_tokens": waiting, "budget_tokens": 1024}
            tuner.observe(Role.PREFILL, report(duration_s=0.1, prefill_tokens=2000), **facts)
            tuner.observe(Role.DECODE, report(duration_s=0.02), **facts)
            tuner.move(float(turn))
        assert tuner.threshold_tokens == bound

    def test_a_fixed_threshold_does_not_move(self) -> None:
        assert set(self.settle(ThresholdTuner(threshold_tokens=777, adapts=False), waiting=9000)) == {777}

    def test_it_stays_where_it_starts_until_rates_are_known(self) -> None:
        tuner = ThresholdTuner(threshold_tokens=777, adapts=True)
        tuner.observe(Role.DECODE, report(duration_s=0.02), outstanding_tokens=5, budget_tokens=1024)
        assert tuner.move(1.0) == 777
