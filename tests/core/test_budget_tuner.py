"""The adaptive token budget against a worker whose costs are known, and the adaptive threshold against two rates."""

from __future__ import annotations

import itertools

import pytest

from common.core.budget_tuner import BudgetTuner
from common.core.defaults import ADAPTIVE_PLAIN_SHARE
from common.core.ids import Role
from common.core.threshold_tuner import ThresholdTuner
from common.core.worker_iteration import Iteration
from tests.core.samples import iteration_report
from tests.core.worker_work import attempt, worker_config

BLOCK_TOKENS = 32
FIXED_S, DECODE_S, PER_TOKEN_S = 0.008, 0.002, 0.00005
"""What an iteration costs, each decode in it, and each prefill token."""


class Hardware:
    """Runs iterations of known cost; `wobble` spreads durations by that share, alternately up and down."""

    def __init__(
        self,
        *,
        wobble: float = 0.0,
        forwards: int = 12,
        canvas: int = 1000,
        adapts: bool = True,
        target_gap_s: float = 0.0,
    ) -> None:
        config = worker_config(
            Role.DECODE,
            token_budget_tokens=700,
            token_budget_adapts=adapts,
            max_batch_size=128,
            target_decode_gap_s=target_gap_s,
        )
        self.tuner = BudgetTuner(config)
        self.wobble, self.forwards, self.canvas = wobble, forwards, canvas
        self.now, self.turns = 0.0, 0

    def run(self, *, decodes: int, prefills: int = 0) -> float:
        self.turns += 1
        spread = 1.0 + self.wobble * (-1.0) ** self.turns
        prefill_tokens = prefills * self.canvas
        duration_s = (FIXED_S + DECODE_S * decodes + PER_TOKEN_S * prefill_tokens) * spread
        self.now += duration_s
        iteration = Iteration(
            number=self.turns,
            decodes=tuple(attempt(f"d{number}") for number in range(decodes)),
            prefills=tuple(attempt(f"p{number}") for number in range(prefills)),
            decode_tokens=BLOCK_TOKENS * decodes,
            prefill_tokens=prefill_tokens,
        )
        self.tuner.observe(iteration, duration_s=duration_s, now=self.now)
        return duration_s

    def serve(self, blocks: int, *, at_once: int = 1) -> float:
        """So many blocks in turns: each has its prefill, in a forward with `at_once` of them, and goes on as a decode.
        Returns the share of plain iterations in the time.
        """
        mixed = max(1, blocks // at_once)
        mixed_s = sum(self.run(decodes=max(0, blocks - at_once), prefills=at_once) for _ in range(mixed))
        plain_s = sum(self.run(decodes=blocks) for _ in range(max(0, self.forwards - mixed)))
        for _ in range(blocks):
            self.tuner.observe_block(self.forwards)
        return plain_s / (plain_s + mixed_s)

    def settle(self, start: int, *, rounds: int = 60) -> list[int]:
        """Always as many blocks as were wanted last, from `start`; what was wanted after each round."""
        wanted = []
        blocks = start
        for _ in range(rounds):
            self.serve(blocks, at_once=max(1, self.tuner.wanted_prefill_tokens // self.canvas))
            blocks = self.tuner.wanted_blocks - 1
            wanted.append(self.tuner.wanted_blocks)
        return wanted


@pytest.mark.parametrize("start", [1, 5, 12, 60])
def test_it_wants_the_fewest_blocks_with_which_plain_iterations_take_their_share_from_anywhere(start: int) -> None:
    one = Hardware()
    (wanted,) = set(one.settle(start)[-20:])
    assert one.serve(wanted - 1) <= ADAPTIVE_PLAIN_SHARE + 0.02
    assert one.serve(wanted - 2) > ADAPTIVE_PLAIN_SHARE - 0.02


def test_noise_moves_it_by_one_block_at_most() -> None:
    wanted = Hardware(wobble=0.2).settle(5, rounds=200)[-150:]
    assert max(wanted) - min(wanted) <= 1


def test_the_longer_a_prefill_the_fewer_blocks() -> None:
    wanted = [Hardware(canvas=canvas).settle(5)[-1] for canvas in (300, 1000, 4000)]
    assert wanted == sorted(wanted, reverse=True) and wanted[0] > wanted[-1] >= 2


def test_prefills_that_cost_less_than_an_iteration_does_anyway_come_together() -> None:
    one = Hardware(canvas=32)
    alone = Hardware(canvas=320).settle(5)[-1]
    assert one.settle(5)[-1] > 2 * alone
    assert one.tuner.wanted_prefill_tokens == pytest.approx(FIXED_S / PER_TOKEN_S, rel=0.05)


def test_it_never_wants_more_than_the_batch_holds_and_one() -> None:
    assert Hardware(canvas=1, forwards=32).settle(100)[-1] == 128 + 1


def test_the_budget_lets_the_head_in_beside_any_decodes() -> None:
    one = Hardware()
    one.settle(5)
    for decodes in (0, 3200):
        assert one.tuner.next_budget_tokens(decode_tokens=decodes, head_tokens=5000) == decodes + 5000
    spare = one.tuner.wanted_prefill_tokens
    assert one.tuner.next_budget_tokens(decode_tokens=32, head_tokens=0) == 32 + spare
    assert one.tuner.next_budget_tokens(decode_tokens=32, head_tokens=5000, deficit_tokens=4000) == 32 + 1000


@pytest.mark.parametrize("start", [1, 5, 12, 60])
@pytest.mark.parametrize("target_gap_s", [0.02, 0.03])
def test_a_target_of_the_decode_gap_is_met_within_a_block_from_anywhere(start: int, target_gap_s: float) -> None:
    one = Hardware(target_gap_s=target_gap_s)
    (wanted,) = set(one.settle(start, rounds=100)[-20:])
    assert wanted < Hardware().settle(start)[-1]
    each_s = DECODE_S + PER_TOKEN_S * one.canvas / one.forwards
    assert target_gap_s - each_s < one.tuner.decode_gap_s < target_gap_s + each_s


def test_noise_moves_what_a_target_leaves_by_one_block_at_most() -> None:
    wanted = Hardware(wobble=0.2, target_gap_s=0.03).settle(5, rounds=200)[-150:]
    assert max(wanted) - min(wanted) <= 1


def test_a_target_out_of_reach_leaves_one_block_and_the_one_on_its_way() -> None:
    assert Hardware(target_gap_s=FIXED_S / 2).settle(12)[-1] == 2


def test_a_target_that_is_met_anyway_changes_nothing() -> None:
    assert Hardware(target_gap_s=1.0).settle(5) == Hardware().settle(5)


def test_it_stays_where_it_starts_until_costs_are_known() -> None:
    one = Hardware()
    one.run(decodes=1)
    one.run(decodes=0, prefills=1)
    assert one.tuner.next_budget_tokens(decode_tokens=0, head_tokens=50_000) == 700
    assert one.tuner.wanted_blocks == one.tuner.wanted_prefill_tokens == 0
    one.tuner.observe_block(12)
    one.run(decodes=1)
    assert one.tuner.next_budget_tokens(decode_tokens=0, head_tokens=50_000) == 50_000
    assert one.tuner.wanted_blocks >= 2


def test_a_fixed_budget_does_not_move_wants_nothing_and_measures_all_the_same() -> None:
    one = Hardware(adapts=False)
    for _ in range(3):
        one.serve(5)
    assert one.tuner.next_budget_tokens(decode_tokens=5000, head_tokens=10**6) == one.tuner.budget_tokens == 700
    assert one.tuner.wanted_blocks == one.tuner.wanted_prefill_tokens == 0
    assert one.tuner.last_duration_s == pytest.approx(FIXED_S + 5 * DECODE_S)
    assert one.tuner.decode_gap_s > FIXED_S


def test_a_pause_is_nobodys_gap() -> None:
    one = Hardware()
    for _ in range(3):
        one.run(decodes=1)
    one.now += 100.0
    one.tuner.pause()
    one.run(decodes=1)
    one.run(decodes=1)
    assert one.tuner.decode_gap_s == pytest.approx(FIXED_S + DECODE_S)


class TestThreshold:
    def settle(self, tuner: ThresholdTuner, *, waiting: int, seconds: float = 20.0) -> list[int]:
        """Prefill workers do 20000 tokens/s; decode workers take 20 ms per decode-only iteration of 224 tokens."""
        thresholds = []
        for turn in range(int(seconds / 0.1)):
            tuner.placed(1000)
            facts = {"outstanding_tokens": waiting, "budget_tokens": 1024}
            tuner.observe(Role.PREFILL, iteration_report(duration_s=0.1, prefill_tokens=2000), **facts)
            tuner.observe(Role.DECODE, iteration_report(duration_s=0.02, decode_tokens=224), **facts)
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
            tuner.observe(Role.PREFILL, iteration_report(duration_s=0.1, prefill_tokens=2000), **facts)
            tuner.observe(Role.DECODE, iteration_report(duration_s=0.02), **facts)
            tuner.move(float(turn))
        assert tuner.threshold_tokens == bound

    def test_a_fixed_threshold_does_not_move(self) -> None:
        assert set(self.settle(ThresholdTuner(threshold_tokens=777, adapts=False), waiting=9000)) == {777}

    def test_it_stays_where_it_starts_until_rates_are_known(self) -> None:
        tuner = ThresholdTuner(threshold_tokens=777, adapts=True)
        tuner.observe(Role.DECODE, iteration_report(duration_s=0.02), outstanding_tokens=5, budget_tokens=1024)
        assert tuner.move(1.0) == 777
