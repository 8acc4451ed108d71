"""Placement policies and overflow: the worked figures of the reference notes (invariants 20 to 28)."""

from __future__ import annotations

import pytest

from common.core.cluster import WorkerView
from common.core.ids import Role
from common.core.overflow import must_hold_back, overflow_target
from common.core.placement import (
    COLOCATED_POLICIES,
    DECODE_POLICIES,
    PREFILL_POLICIES,
    BlockNeed,
    least_outstanding_tokens,
    max_free_pages,
    under_threshold,
    with_pages,
)
from tests.core.samples import worker_spec

PAGE = 4


def view(name: str, *, free: int, outstanding: int = 0, role: Role = Role.DECODE) -> WorkerView:
    return WorkerView(
        spec=worker_spec(name, role, pages=256, page_size=PAGE),
        pages_free=free,
        outstanding_prefill_tokens=outstanding,
        active_decodes=0,
        draining=False,
        report=None,
    )


def need(pages: int) -> BlockNeed:
    return BlockNeed(canvas_tokens=pages * PAGE, block_length_tokens=PAGE, prefill_worker_id=None, turn=0)


def name_of(chosen: WorkerView | None) -> str | None:
    return None if chosen is None else chosen.spec.life.worker_id


def test_fewest_outstanding_tokens_wins_whatever_the_pages() -> None:
    assert name_of(least_outstanding_tokens([view("a", free=128, outstanding=3), view("b", free=64)], need(4))) == "b"


def test_most_free_pages_wins_for_decodes() -> None:
    assert name_of(max_free_pages([view("a", free=8), view("b", free=9, outstanding=500)], need(4))) == "b"


@pytest.mark.parametrize("policy", [least_outstanding_tokens, max_free_pages])
def test_equal_workers_are_told_apart_by_id_in_any_order(policy) -> None:
    workers = [view("c", free=8), view("a", free=8), view("b", free=8)]
    assert name_of(policy(workers, need(4))) == name_of(policy(workers[::-1], need(4))) == "a"


@pytest.mark.parametrize("policies", [PREFILL_POLICIES, DECODE_POLICIES, COLOCATED_POLICIES])
def test_no_candidate_is_no_worker(policies) -> None:
    assert all(policy([], need(1)) is None for policy in policies.values())


def test_a_worker_at_the_threshold_is_excluded_despite_its_pages() -> None:
    workers = [view("a", free=128, outstanding=64), view("b", free=8, outstanding=63)]
    assert [name_of(worker) for worker in under_threshold(workers, 64)] == ["b"]


def test_pages_are_counted_whole() -> None:
    workers = [view("a", free=2), view("b", free=3)]
    assert [name_of(worker) for worker in with_pages(workers, 2 * PAGE + 1)] == ["b"]


def test_overflow_prefers_the_idle_worker_over_the_roomy_one() -> None:
    workers = [view("a", free=128, outstanding=3), view("b", free=64)]
    assert name_of(overflow_target(workers, need(4), threshold_tokens=100, backlog_tokens=0)) == "b"


@pytest.mark.parametrize(("free", "held"), [(8, True), (16, False)])
def test_overflow_leaves_what_five_pages_of_finished_prefills_wait_for(free: int, held: bool) -> None:
    workers = [view("a", free=free)]
    assert must_hold_back(workers, canvas_tokens=4 * PAGE, backlog_tokens=5 * PAGE) is held
    chosen = overflow_target(workers, need(4), threshold_tokens=100, backlog_tokens=5 * PAGE)
    assert name_of(chosen) == (None if held else "a")


def test_free_pages_of_all_decode_workers_count_against_the_backlog() -> None:
    workers = [view("a", free=5), view("b", free=4)]
    assert not must_hold_back(workers, canvas_tokens=4 * PAGE, backlog_tokens=5 * PAGE)
    assert must_hold_back(workers, canvas_tokens=4 * PAGE, backlog_tokens=6 * PAGE)


def test_overflow_respects_the_threshold_of_decode_workers() -> None:
    workers = [view("a", free=64, outstanding=100), view("b", free=2)]
    assert overflow_target(workers, need(4), threshold_tokens=100, backlog_tokens=0) is None


def test_no_decode_worker_no_overflow() -> None:
    assert overflow_target([], need(1), threshold_tokens=100, backlog_tokens=0) is None
