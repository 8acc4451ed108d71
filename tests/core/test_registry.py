"""The K/V registry: leases, incarnations, reconciliation."""

from __future__ import annotations

import random

import pytest

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.registry import KvOutcome, Reconciliation, RegistryCore
from common.core.work import KvHandle
from tests.core.samples import kv_handle

OK, NOT_FOUND, STALE = KvOutcome.OK, KvOutcome.NOT_FOUND, KvOutcome.STALE_INCARNATION
OLD, NEW = WorkerLife(WorkerId("p"), 1), WorkerLife(WorkerId("p"), 2)
OTHER = WorkerLife(WorkerId("q"), 1)


def attempt(name: str, number: int = 0) -> BlockAttempt:
    return BlockAttempt(RequestId(name), 0, number)


def handle(name: str, owner: WorkerLife = OLD, *, lease_s: float = 10.0) -> KvHandle:
    return kv_handle(attempt(name), owner, lease_s=lease_s)


def test_what_was_published_is_found_with_the_lease_that_is_left() -> None:
    registry = RegistryCore()
    assert registry.publish([handle("a"), handle("b", lease_s=3.0)], 100.0) == [OK, OK]
    found = registry.get([attempt("b"), attempt("x"), attempt("a")], 102.0)
    assert [(entry.attempt, entry.lease_s) for entry in found] == [(attempt("b"), 1.0), (attempt("a"), 8.0)]


def test_an_entry_ends_with_its_lease() -> None:
    registry = RegistryCore()
    registry.publish([handle("a", lease_s=3.0)], 0.0)
    assert registry.next_expiry() == 3.0
    assert registry.get([attempt("a")], 3.0) == [] and len(registry) == 0
    assert registry.renew(OLD, [attempt("a")], 5.0, 3.0) == [NOT_FOUND]


@pytest.mark.parametrize(("lease_s", "left_s"), [(4.0, 8.0), (20.0, 20.0)])
def test_a_lease_never_shrinks(lease_s: float, left_s: float) -> None:
    registry = RegistryCore()
    registry.publish([handle("a"), handle("b")], 0.0)
    assert registry.renew(OLD, [attempt("a"), attempt("z")], lease_s, 2.0) == [OK, NOT_FOUND]
    assert registry.publish([handle("b", lease_s=lease_s)], 2.0) == [OK]
    assert [entry.lease_s for entry in registry.get([attempt("a"), attempt("b")], 2.0)] == [left_s, left_s]


def test_release_is_idempotent_and_only_for_the_owner() -> None:
    registry = RegistryCore()
    registry.publish([handle("a"), handle("b", OTHER)], 0.0)
    assert registry.release(OLD, [attempt("a"), attempt("b"), attempt("x")], 1.0) == [OK, OK, OK]
    assert registry.release(OLD, [attempt("a")], 1.0) == [OK]
    assert [entry.attempt for entry in registry.get([attempt("a"), attempt("b")], 1.0)] == [attempt("b")]


def test_a_newer_life_ends_the_older_one() -> None:
    registry = RegistryCore()
    registry.publish([handle("a"), handle("q", OTHER)], 0.0)
    assert registry.publish([handle("b", NEW)], 1.0) == [OK]
    assert [entry.attempt for entry in registry.get([attempt(n) for n in "abq"], 1.0)] == [attempt("b"), attempt("q")]
    assert registry.publish([handle("c")], 1.0) == [STALE]
    assert registry.renew(OLD, [attempt("a")], 5.0, 1.0) == [STALE]
    assert registry.release(OLD, [attempt("b")], 1.0) == [STALE]


def test_a_fence_drops_that_life_and_refuses_it_for_ever() -> None:
    registry = RegistryCore()
    registry.publish([handle("a"), handle("b"), handle("q", OTHER)], 0.0)
    assert registry.fence(OLD) == 2
    assert registry.fence(OLD) == 0
    assert registry.publish([handle("a")], 1.0) == [STALE]
    assert registry.publish([handle("a", NEW)], 1.0) == [OK]
    assert len(registry) == 2


def test_a_fence_before_the_first_publication_holds_and_spares_later_lives() -> None:
    registry = RegistryCore()
    assert registry.fence(NEW) == 0
    assert registry.publish([handle("a", OLD), handle("b", NEW)], 0.0) == [STALE, STALE]
    later = WorkerLife(WorkerId("p"), 3)
    assert registry.publish([handle("c", later)], 0.0) == [OK]
    assert registry.fence(NEW) == 0 and len(registry) == 1


def test_reconcile_names_both_differences_and_drops_what_is_not_held() -> None:
    registry = RegistryCore()
    registry.publish([handle("a"), handle("b"), handle("c"), handle("q", OTHER)], 0.0)
    difference = registry.reconcile(OLD, [attempt("d"), attempt("b")], 1.0)
    assert difference == Reconciliation(unknown=(attempt("d"),), removed=(attempt("a"), attempt("c")))
    assert registry.reconcile(OLD, [attempt("b")], 1.0) == Reconciliation(unknown=(), removed=())
    assert len(registry) == 2


def test_to_a_life_that_is_over_everything_it_holds_is_unknown() -> None:
    registry = RegistryCore()
    registry.publish([handle("a", NEW)], 0.0)
    difference = registry.reconcile(OLD, [attempt("a"), attempt("b")], 1.0)
    assert difference == Reconciliation(unknown=(attempt("a"), attempt("b")), removed=())
    assert len(registry) == 1


def test_an_attempt_placed_elsewhere_belongs_to_its_latest_owner() -> None:
    registry = RegistryCore()
    registry.publish([handle("a")], 0.0)
    assert registry.publish([handle("a", OTHER)], 1.0) == [OK]
    assert registry.renew(OLD, [attempt("a")], 5.0, 1.0) == [NOT_FOUND]
    assert registry.fence(OLD) == 0
    assert registry.get([attempt("a")], 1.0)[0].owner == OTHER


def test_a_lease_that_is_over_on_arrival_leaves_nothing() -> None:
    registry = RegistryCore()
    assert registry.publish([handle("a", lease_s=0.0)], 0.0) == [NOT_FOUND]
    assert len(registry) == 0 and registry.next_expiry() is None


def test_random_calls_agree_with_a_plain_list_of_leases() -> None:
    rng = random.Random(5)
    registry, plain, now = RegistryCore(), dict[BlockAttempt, tuple[WorkerLife, float]](), 0.0
    owners = [WorkerLife(WorkerId("p"), 1), WorkerLife(WorkerId("q"), 1), WorkerLife(WorkerId("r"), 1)]
    for _ in range(3000):
        now += rng.random()
        plain = {name: entry for name, entry in plain.items() if entry[1] > now}
        owner, name, lease_s = rng.choice(owners), attempt(f"r{rng.randrange(12)}"), rng.uniform(0.5, 8.0)
        mine = plain.get(name, (None, 0.0))
        action = rng.randrange(3)
        if action == 0:
            entry = handle(name.request_id, owner, lease_s=lease_s)
            assert registry.publish([entry], now) == [OK]
            plain[name] = (owner, max(now + lease_s, mine[1] if mine[0] == owner else 0.0))
        elif action == 1:
            held = mine[0] == owner
            assert registry.renew(owner, [name], lease_s, now) == [OK if held else NOT_FOUND]
            if held:
                plain[name] = (owner, max(mine[1], now + lease_s))
        else:
            registry.release(owner, [name], now)
            if mine[0] == owner:
                del plain[name]
        found = registry.get([attempt(f"r{index}") for index in range(12)], now)
        assert {entry.attempt: entry.owner for entry in found} == {key: entry[0] for key, entry in plain.items()}
        assert all(abs(entry.lease_s - (plain[entry.attempt][1] - now)) < 1e-9 for entry in found)
