"""The count ledger of pages, and the heap behind queues and timers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.core.keyed_heap import KeyedHeap
from common.core.pages import PageLedger
from common.core.timers import TimerKind, Timers


def test_eight_free_pages_take_two_and_four_and_leave_two() -> None:
    ledger = PageLedger[str](8)
    ledger.reserve("a", 2)
    ledger.reserve("b", 4)
    assert ledger.free_pages == 2
    assert ledger.release("a") == 2 and ledger.free_pages == 4
    ledger.check()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda ledger: ledger.reserve("a", 1),
        lambda ledger: ledger.reserve("b", 5),
        lambda ledger: ledger.reserve("b", 0),
        lambda ledger: ledger.release("b"),
        lambda ledger: ledger.hand_over("b", "c"),
        lambda ledger: ledger.hand_over("a", "a"),
    ],
)
def test_misuse_is_a_bug_and_takes_nothing(misuse) -> None:
    ledger = PageLedger[str](8)
    ledger.reserve("a", 4)
    with pytest.raises(AssertionError):
        misuse(ledger)
    assert ledger.free_pages == 4 and dict(ledger.held) == {"a": 4}
    ledger.check()


def test_pages_change_hands_without_being_free_in_between() -> None:
    ledger = PageLedger[str](8)
    ledger.reserve("call", 8)
    ledger.hand_over("call", "attempt")
    assert ledger.free_pages == 0 and dict(ledger.held) == {"attempt": 8}
    with pytest.raises(AssertionError):
        ledger.release("call")


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 5))), max_size=200))
def test_the_heap_agrees_with_a_plain_dictionary(steps: list[tuple[int, int | None]]) -> None:
    heap, plain = KeyedHeap[int, int](), dict[int, int]()
    for key, priority in steps:
        if priority is None:
            assert heap.discard(key) == (plain.pop(key, None) is not None)
        else:
            heap.push(key, priority)
            plain[key] = priority
        assert len(heap) == len(plain) and (key in heap) == (key in plain)
        expected = min(((p, k) for k, p in plain.items()), default=None)
        assert heap.peek() == (None if expected is None else (expected[1], expected[0]))


def test_timers_ring_in_order_once_and_not_before() -> None:
    timers = Timers()
    rng = random.Random(1)
    due = {f"r{index}": rng.uniform(0.0, 10.0) for index in range(50)}
    for name, at_s in due.items():
        timers.set(TimerKind.LEASE, name, 99.0)
        timers.set(TimerKind.LEASE, name, at_s)
    timers.cancel(TimerKind.LEASE, "r0")
    timers.cancel(TimerKind.DEADLINE, "r1")
    assert timers.next_due() == min(at_s for name, at_s in due.items() if name != "r0")
    rung = []
    while (timer := timers.pop_due(5.0)) is not None:
        rung.append(timer[1])
    expected = sorted((at_s, name) for name, at_s in due.items() if at_s <= 5.0 and name != "r0")
    assert rung == [name for _, name in expected]
    assert len(timers) == 49 - len(rung)
