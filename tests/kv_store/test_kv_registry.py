"""KvRegistryService over a real loopback server: one contract, whichever store keeps the entries."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from common.clock import ManualClock
from common.errors import InvalidRequest
from common.rpc.convert import kv_handle_from_proto
from common.rpc.status import wire_error
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import types_pb2
from services.kv_store.janitor import SWEEP_INTERVAL_S, sweep_forever
from services.kv_store.memory_store import MemoryStore
from tests.kv_store.registry import HOUR_MS, HOUR_S, NOT_FOUND, OK, STALE, attempt, entry, hours_left, life


async def test_what_is_published_is_found_with_the_lease_that_is_left(registry):
    assert await registry.publish(entry("a"), entry("b", lease_ms=4 * HOUR_MS)) == [OK, OK]
    registry.advance(3 * HOUR_S)
    found = await registry.get("b", "nobody", "a")
    assert list(found) == ["b", "a"]
    assert (hours_left(found["a"]), hours_left(found["b"])) == (7, 1)
    assert found["a"] == entry("a", lease_ms=found["a"].lease_ms)


async def test_an_entry_past_its_lease_does_not_exist(registry):
    await registry.publish(entry("a", lease_ms=4 * HOUR_MS), entry("b", lease_ms=5 * HOUR_MS))
    registry.advance(4 * HOUR_S)
    assert list(await registry.get("a", "b")) == ["b"]
    assert await registry.renew(life(), 9 * HOUR_MS, "a", "b") == [NOT_FOUND, OK]
    assert await registry.reconcile(life(), "a", "b") == (["a"], [])
    assert await registry.fence(life()) == 1


async def test_every_call_may_be_repeated(registry):
    for _ in range(2):
        assert await registry.publish(entry("a"), entry("b")) == [OK, OK]
    for _ in range(2):
        assert await registry.renew(life(), 20 * HOUR_MS, "a") == [OK]
    for _ in range(2):
        assert await registry.release(life(), "a", "unknown") == [OK, OK]
    assert list(await registry.get("a", "b")) == ["b"]
    assert [await registry.fence(life()) for _ in range(2)] == [1, 0]


async def test_a_lease_never_shrinks(registry):
    await registry.publish(entry("a", lease_ms=10 * HOUR_MS))
    assert await registry.renew(life(), 1 * HOUR_MS, "a") == [OK]
    assert await registry.publish(entry("a", lease_ms=2 * HOUR_MS), entry("a", lease_ms=0)) == [OK, OK]
    assert hours_left((await registry.get("a"))["a"]) == 10
    await registry.renew(life(), 15 * HOUR_MS, "a")
    assert hours_left((await registry.get("a"))["a"]) == 15


async def test_a_lease_that_is_over_on_arrival_leaves_nothing(registry):
    assert await registry.publish(entry("a", lease_ms=0)) == [NOT_FOUND]
    assert await registry.get("a") == {}
    assert await registry.fence(life()) == 0


async def test_a_fenced_life_is_gone_and_stays_gone(registry):
    await registry.publish(entry("a"), entry("b"), entry("c", owner=life(worker_id="p1")))
    assert await registry.fence(life(incarnation=2)) == 2
    assert list(await registry.get("a", "b", "c")) == ["c"]
    assert await registry.publish(entry("a"), entry("d", owner=life(2)), entry("e", owner=life(3))) == [
        STALE,
        STALE,
        OK,
    ]
    assert await registry.renew(life(2), 9 * HOUR_MS, "e") == [STALE]
    assert list(await registry.get("a", "d", "e")) == ["e"]


async def test_a_newer_life_ends_the_older_one(registry):
    await registry.publish(entry("a", owner=life(1)))
    await registry.publish(entry("b", owner=life(2)))
    assert list(await registry.get("a", "b")) == ["b"]
    assert await registry.publish(entry("a", owner=life(1))) == [STALE]
    assert await registry.release(life(1), "b") == [STALE]
    assert await registry.reconcile(life(1), "b", "a") == (["a", "b"], [])
    assert list(await registry.get("a", "b")) == ["b"]


@pytest.mark.parametrize("newest", [1_790_000_000_000_000_001, 2**64 - 1])
async def test_neighbouring_lives_are_told_apart_in_all_64_bits(registry, newest):
    assert await registry.publish(entry("a", owner=life(newest - 1)), entry("b", owner=life(newest))) == [OK, OK]
    assert list(await registry.get("a", "b")) == ["b"]
    assert await registry.fence(life(newest - 1)) == 0
    assert await registry.publish(entry("a", owner=life(newest - 1)), entry("c", owner=life(newest))) == [STALE, OK]
    assert await registry.fence(life(newest)) == 2
    assert await registry.publish(entry("c", owner=life(newest))) == [STALE]


async def test_lives_are_compared_as_numbers(registry):
    assert await registry.publish(entry("a", owner=life(9)), entry("b", owner=life(10))) == [OK, OK]
    assert await registry.publish(entry("c", owner=life(9))) == [STALE]


async def test_an_attempt_placed_elsewhere_belongs_to_its_latest_owner(registry):
    other = life(worker_id="p1")
    assert await registry.publish(entry("a"), entry("a", owner=other)) == [OK, OK]
    assert (await registry.get("a"))["a"].owner == other
    assert await registry.fence(life()) == 0
    assert await registry.reconcile(other) == ([], ["a"])


async def test_names_with_odd_characters_stay_apart(registry):
    """Separators, spaces, unicode and empty-looking parts in ids: nothing runs into anything else."""
    ids = ["a", "a/0", "0/0/a", "a b\r\n*", "\u092d:{x}", "%s", "owner:p0"]
    odd = life(worker_id="p0:\u092d/{}\n")
    assert await registry.publish(*(entry(name, owner=odd) for name in ids), entry("b")) == [OK] * 8
    assert list(await registry.get(*ids)) == ids
    assert await registry.reconcile(odd, *ids[1:]) == ([], ["a"])
    assert await registry.fence(odd) == 6
    assert list(await registry.get("b", *ids)) == ["b"]


async def test_attempts_of_one_request_are_apart_and_come_in_order(registry):
    published = [attempt("a", 10, 2), attempt("a", 2, 10), attempt("a", 2, 9)]
    for item in published:
        await registry.stub.PublishKv(pb.PublishKvRequest(entries=[with_attempt(item)]), timeout=10)
    answer = await registry.stub.ReconcileKv(pb.ReconcileKvRequest(owner=life()), timeout=10)
    assert list(answer.removed) == sorted(published, key=lambda item: (item.block, item.attempt))


def with_attempt(item: types_pb2.BlockAttempt) -> types_pb2.KvHandle:
    handle = entry("x")
    handle.attempt.CopyFrom(item)
    return handle


async def test_only_the_owner_renews_and_releases(registry):
    await registry.publish(entry("a"))
    other = life(worker_id="p1")
    assert await registry.renew(other, 60 * HOUR_MS, "a") == [NOT_FOUND]
    await registry.release(other, "a")
    assert hours_left((await registry.get("a"))["a"]) == 10


async def test_reconcile_names_both_differences_and_removes_what_is_no_longer_held(registry):
    await registry.publish(entry("a"), entry("b"), entry("c", owner=life(worker_id="p1")))
    assert await registry.reconcile(life(), "b", "new") == (["new"], ["a"])
    assert await registry.reconcile(life(), "b", "new") == (["new"], [])
    assert list(await registry.get("a", "b", "c")) == ["b", "c"]


@pytest.mark.parametrize(
    ("method", "request_message", "field"),
    [
        ("PublishKv", pb.PublishKvRequest(entries=[entry("a"), types_pb2.KvHandle()]), "entries[1].attempt"),
        ("GetKv", pb.GetKvRequest(attempts=[attempt("a"), attempt("")]), "attempts[1].request_id"),
        ("RenewKv", pb.RenewKvRequest(attempts=[attempt("a")]), "owner.worker_id"),
        ("ReleaseKv", pb.ReleaseKvRequest(owner=life(0)), "owner.incarnation"),
        ("ReconcileKv", pb.ReconcileKvRequest(owner=life(), held=[attempt("")]), "held[0].request_id"),
        ("FenceWorker", pb.FenceWorkerRequest(), "life.worker_id"),
    ],
)
async def test_malformed_calls_name_the_field_and_change_nothing(registry, method, request_message, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(registry.stub, method)(request_message, timeout=10)
    error = wire_error(caught.value)
    assert isinstance(error, InvalidRequest)
    assert error.field == field
    assert await registry.get("a") == {}


async def test_the_janitor_forgets_entries_nobody_asks_for():
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.publish([kv_handle_from_proto(entry(name, lease_ms=ms)) for name, ms in (("a", 500), ("b", 60_000))])
    janitor = asyncio.ensure_future(sweep_forever(store, clock))
    await asyncio.sleep(0)
    assert len(store) == 2
    clock.advance(SWEEP_INTERVAL_S)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(store) == 1
    clock.advance(60)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(store) == 0
    janitor.cancel()
    with pytest.raises(asyncio.CancelledError):
        await janitor
