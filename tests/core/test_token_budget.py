"""Algorithm 1 against the reference notes' worked numbers, an independent oracle and its own theorem."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.core.token_budget import Admission, DeficitTokenBudget, Stop, admit_prefill_batch


@dataclass
class Line:
    """A queue of prefills in front of one budget, with a page pool that only reservations shrink."""

    budget: DeficitTokenBudget
    queue: list[int]
    page_tokens: int = 16
    free_pages: int = 10**9
    reserved: list[int] = field(default_factory=list)

    def reserve(self, index: int) -> bool:
        pages = -(-self.queue[index] // self.page_tokens)
        if pages > self.free_pages:
            return False
        self.free_pages -= pages
        self.reserved.append(index)
        return True

    def turn(self, decode_tokens: int) -> list[int]:
        """Run one iteration; returns the canvases admitted."""
        self.reserved.clear()
        admission = self.budget.admit(decode_tokens=decode_tokens, prefill_tokens=self.queue, reserve=self.reserve)
        assert self.reserved == list(range(admission.admitted))
        admitted, self.queue = self.queue[: admission.admitted], self.queue[admission.admitted :]
        assert admission.tokens == sum(admitted)
        return admitted


def line(
    queue: list[int], *, tau: int = 1024, deficit: int = 0, page_tokens: int = 16, free_pages: int = 10**9
) -> Line:
    """A line whose budget has saved up `deficit` in front of a head that did not fit."""
    budget = DeficitTokenBudget(tau)
    if deficit:
        turns, rest = divmod(deficit, tau - 1)
        blocked = Line(budget, [10**9])
        for _ in range(turns):
            assert blocked.turn(1) == []
        if rest:
            assert blocked.turn(tau - rest) == []
        assert budget.deficit_tokens == deficit
    return Line(budget, queue, page_tokens=page_tokens, free_pages=free_pages)


class TestWorkedNumbers:
    def test_a_long_head_saves_up_until_it_fits(self):
        one = line([4000])
        deficits = []
        for _ in range(5):
            assert one.turn(10 * 32) == []
            deficits.append(one.budget.deficit_tokens)
        assert deficits == [704, 1408, 2112, 2816, 3520]
        assert one.turn(10 * 32) == [4000]
        assert one.budget.deficit_tokens == 224

    def test_three_heads_go_one_per_turn(self):
        one = line([700, 700, 700])
        for deficit in (4, 8, 12):
            assert one.turn(320) == [700]
            assert one.budget.deficit_tokens == deficit
        assert one.turn(320) == []
        assert one.budget.deficit_tokens == 0

    def test_more_decodes_than_budget_eat_the_deficit(self):
        one = line([10**8], deficit=5000)
        deficits = []
        for _ in range(5):
            assert one.turn(64 * 32) == []
            deficits.append(one.budget.deficit_tokens)
        assert deficits == [3976, 2952, 1928, 904, 0]


class TestInvariants:
    """Numbered as in the reference notes."""

    def test_1_the_decode_batch_does_not_gate_a_prefill(self):
        assert line([64]).turn(2 * 32) == [64]

    def test_2_no_pages_for_the_head_admits_nothing_and_keeps_the_order(self):
        one = line([128, 16], free_pages=1)
        assert one.turn(32) == []
        assert one.queue == [128, 16]
        assert one.free_pages == 1

    def test_3_a_blocked_head_blocks_a_smaller_follower(self):
        one = line([128, 16], tau=256)
        assert one.turn(200) == []
        assert one.queue == [128, 16]

    def test_4_both_reserve_pages(self):
        one = line([8, 16], page_tokens=4, free_pages=8)
        assert one.turn(32) == [8, 16]
        assert one.free_pages == 2

    def test_5_a_prefill_that_does_not_fit_memory_takes_no_page(self):
        one = line([64], page_tokens=4, free_pages=2)
        assert one.turn(32) == []
        assert one.free_pages == 2

    def test_6_a_memory_stall_banks_no_fresh_budget(self):
        one = line([160], tau=1000, deficit=500, free_pages=1)
        for _ in range(3):
            assert one.turn(100) == []
            assert one.budget.deficit_tokens == 500

    def test_7_a_memory_stall_after_an_admission_pays_from_the_deficit(self):
        one = line([150, 160], tau=132, deficit=200, free_pages=10)
        assert one.turn(32) == [150]
        assert one.budget.deficit_tokens == 150

    def test_8_without_decodes_an_oversized_head_runs_alone(self):
        one = line([5000, 16])
        assert one.turn(0) == [5000]
        assert one.budget.deficit_tokens == 0
        assert one.queue == [16]

    def test_9_two_prefills_share_an_iteration(self):
        assert line([3000, 1500], tau=8192).turn(0) == [3000, 1500]

    def test_10_the_second_prefill_is_over_budget(self):
        assert line([3000, 1500], tau=4096).turn(1024) == [3000]

    def test_11_an_empty_queue_clears_the_deficit(self):
        one = line([], deficit=700)
        assert one.turn(32) == []
        assert one.budget.deficit_tokens == 0


class TestHolesOfThePrototype:
    def test_the_deficit_does_not_survive_idleness(self):
        one = line([100])
        assert one.turn(0) == [100]
        assert one.turn(0) == []
        assert one.budget.deficit_tokens == 0
        one.queue = [1500]
        assert one.turn(32) == []

    def test_a_trickle_of_small_prefills_cannot_save_up_for_a_long_stall(self):
        one = line([])
        for _ in range(100):
            one.queue = [16]
            assert one.turn(32) == [16]
            assert one.budget.deficit_tokens <= 1024
        one.queue = [900] * 10
        assert len(one.turn(32)) == 2

    @pytest.mark.parametrize("decode_tokens", [1024, 1023, 4096])
    @pytest.mark.parametrize("canvas_tokens", [1, 128, 4000, 16384])
    def test_a_prefill_is_admitted_within_its_bound_however_many_decodes_are_fed(self, decode_tokens, canvas_tokens):
        one = line([canvas_tokens])
        share_tokens = 1024 // 8
        turns = 0
        while not one.turn(decode_tokens):
            turns += 1
            assert turns <= -(-canvas_tokens // share_tokens)

    def test_without_a_minimum_share_it_would_starve(self):
        one = Line(DeficitTokenBudget(1024, min_share_tokens=0), [64])
        assert all(one.turn(1024) == [] for _ in range(1000))

    def test_the_credit_of_waiting_is_spent_once(self):
        one = line([256, 16])
        assert [one.turn(2048) for _ in range(4)] == [[], [], [256], []]
        assert one.turn(2048) == [16]


def paper(tau: int, deficit: int, decode_tokens: int, needs: list[tuple[int, bool]]) -> tuple[int, int]:
    """Algorithm 1 word by word, without a minimum share: (number admitted, deficit), `needs` = (canvas, pages suffice).

    The one addition: with nothing left waiting the deficit is at most tau.
    """
    if not needs:
        return 0, 0
    b = tau - decode_tokens
    r = b + deficit
    p = 0
    for count, (n, pages_suffice) in enumerate(needs):
        if p + n > r and not (decode_tokens == 0 and count == 0):
            return count, max(0, r - p)
        if not pages_suffice:
            return count, max(0, deficit - max(0, p - b))
        p += n
    return len(needs), min(tau, max(0, r - p))


TURNS = st.lists(
    st.tuples(
        st.integers(0, 40).map(lambda decodes: decodes * 32),
        st.lists(st.integers(1, 3000), max_size=3),
        st.booleans() | st.just(True),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(tau=st.sampled_from([64, 256, 1024]), turns=TURNS)
def test_without_a_share_it_is_the_papers_algorithm(tau, turns):
    one = Line(DeficitTokenBudget(tau, min_share_tokens=0), [])
    deficit = 0
    for decode_tokens, arrivals, pages_suffice in turns:
        one.queue += arrivals
        one.free_pages = 10**9 if pages_suffice else 0
        needs = [(n, pages_suffice) for n in one.queue]
        count, deficit = paper(tau, deficit, decode_tokens, needs)
        assert len(one.turn(decode_tokens)) == count
        assert one.budget.deficit_tokens == deficit


@settings(max_examples=300, deadline=None)
@given(tau=st.sampled_from([64, 256, 1024]), turns=TURNS)
def test_any_window_with_decodes_is_amortized_stall_free(tau, turns):
    one = line([], tau=tau)
    share = tau // 8
    windows: list[int] = []  # tokens each open window may still admit
    largest = 0
    for decode_tokens, arrivals, pages_suffice in turns:
        one.queue += arrivals
        one.free_pages = 10**9 if pages_suffice else 0
        largest = max([largest, *arrivals])
        windows.append(max(one.budget.deficit_tokens, one.budget.head_credit_tokens))
        if decode_tokens == 0:
            windows.clear()
        tokens = sum(one.turn(decode_tokens))
        windows = [left + max(tau - decode_tokens, share) - tokens for left in windows]
        assert all(left >= 0 for left in windows)
        if decode_tokens:
            assert tokens <= max(largest, tau) + max(tau - decode_tokens, share)
        assert one.budget.deficit_tokens >= 0


@settings(max_examples=300, deadline=None)
@given(
    turns=st.lists(st.tuples(st.sampled_from([64, 256, 1024, 4096]), TURNS.map(lambda turns: turns[0])), max_size=60)
)
def test_it_stays_amortized_stall_free_when_the_budget_changes_at_every_turn(turns):
    one = line([], tau=64)
    windows: list[int] = []
    for tau, (decode_tokens, arrivals, pages_suffice) in turns:
        one.queue += arrivals
        one.free_pages = 10**9 if pages_suffice else 0
        windows.append(max(one.budget.deficit_tokens, one.budget.head_credit_tokens))
        if decode_tokens == 0:
            windows.clear()
        one.budget.retune(tau)
        tokens = sum(one.turn(decode_tokens))
        windows = [left + max(tau - decode_tokens, tau // 8) - tokens for left in windows]
        assert all(left >= 0 for left in windows)


@settings(max_examples=300, deadline=None)
@given(
    heads=st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    decode_tokens=st.lists(st.integers(1, 4096), min_size=1, max_size=20),
)
def test_every_prefill_is_admitted_within_the_sum_of_the_bounds_before_it(heads, decode_tokens):
    one = line(heads)
    bounds = [sum(-(-n // 128) + 1 for n in heads[: k + 1]) for k in range(len(heads))]
    turns = 0
    while one.queue:
        one.turn(decode_tokens[turns % len(decode_tokens)])
        turns += 1
        waiting_from = len(heads) - len(one.queue)
        assert waiting_from == len(heads) or turns < bounds[waiting_from]


class TestPrefillBatch:
    @pytest.mark.parametrize(
        ("queue", "admitted", "stop"),
        [
            ([4000, 512], 1, Stop.BUDGET),
            ([5000], 1, Stop.DRAINED),
            ([5000, 1], 1, Stop.BUDGET),
            ([2000, 2096, 1], 2, Stop.BUDGET),
            ([], 0, Stop.DRAINED),
        ],
    )
    def test_20_cap_of_a_prefill_batch(self, queue, admitted, stop):
        admission = admit_prefill_batch(max_batch_tokens=4096, prefill_tokens=queue, reserve=lambda _: True)
        assert admission == Admission(admitted=admitted, tokens=sum(queue[:admitted]), stop=stop)

    def test_26_a_blocked_head_holds_its_follower(self):
        def one_fits(free_pages: int) -> Admission:
            one = Line(DeficitTokenBudget(1), [128, 64], free_pages=free_pages)
            return admit_prefill_batch(max_batch_tokens=4096, prefill_tokens=one.queue, reserve=one.reserve)

        assert one_fits(4) == Admission(admitted=0, tokens=0, stop=Stop.MEMORY)
        assert one_fits(12) == Admission(admitted=2, tokens=192, stop=Stop.DRAINED)
