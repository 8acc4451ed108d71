"""The page pool: conservation, no page twice, neighbours preferred."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.core.ids import BlockAttempt, RequestId
from common.core.page_pool import PagePool


def owner(name: int) -> BlockAttempt:
    return BlockAttempt(request_id=RequestId(f"r{name}"), block=0, attempt=0)


def pool_with_holes(total: int, free: list[tuple[int, int]]) -> PagePool:
    """A pool where exactly these runs (start, end) are free."""
    pool = PagePool(total)
    for page in range(total):
        assert pool.allocate(owner(1000 + page), 1) == (page,)
    for start, end in free:
        for page in range(start, end):
            pool.release(owner(1000 + page))
    return pool


def test_too_few_free_pages_takes_none():
    pool = PagePool(4)
    assert pool.allocate(owner(0), 5) is None
    assert pool.free_pages == 4
    assert pool.owners == frozenset()


def test_the_tightest_run_that_holds_all_pages_is_used():
    pool = pool_with_holes(20, [(0, 6), (8, 11), (13, 17)])
    assert pool.allocate(owner(0), 3) == (8, 9, 10)
    assert pool.allocate(owner(1), 3) == (13, 14, 15)


def test_without_such_a_run_the_fewest_pieces_are_used():
    pool = pool_with_holes(20, [(0, 2), (4, 5), (7, 11)])
    assert pool.allocate(owner(0), 6) == (0, 1, 7, 8, 9, 10)
    assert pool.free_pages == 1


def test_released_pages_join_their_neighbours():
    pool = PagePool(6)
    for name in range(3):
        pool.allocate(owner(name), 2)
    for name in (0, 2, 1):
        pool.release(owner(name))
    assert pool.allocate(owner(9), 6) == (0, 1, 2, 3, 4, 5)


def test_releasing_twice_is_a_bug():
    pool = PagePool(2)
    pool.allocate(owner(0), 1)
    pool.release(owner(0))
    with pytest.raises(AssertionError):
        pool.release(owner(0))


def test_allocating_twice_for_one_owner_is_a_bug():
    pool = PagePool(2)
    pool.allocate(owner(0), 1)
    with pytest.raises(AssertionError):
        pool.allocate(owner(0), 1)


@settings(max_examples=200, deadline=None)
@given(total=st.integers(1, 40), script=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 15)), max_size=60))
def test_pages_are_conserved_and_never_shared(total, script):
    pool = PagePool(total)
    held: dict[int, tuple[int, ...]] = {}
    for name, pages in script:
        if name in held:
            assert pool.pages_of(owner(name)) == held.pop(name)
            pool.release(owner(name))
        else:
            used = {page for page_ids in held.values() for page in page_ids}
            page_ids = pool.allocate(owner(name), pages)
            assert (page_ids is None) == (pages > total - len(used))
            if page_ids is not None:
                assert len(set(page_ids)) == pages
                assert not set(page_ids) & used
                assert set(page_ids) <= set(range(total))
                held[name] = page_ids
        assert pool.free_pages == total - sum(map(len, held.values()))
        pool.check_conservation()
