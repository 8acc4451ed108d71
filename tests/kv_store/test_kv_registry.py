"""KvRegistryService over a real loopback server, with time turned by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from common.clock import ManualClock
from common.errors import InvalidRequest
from common.rpc.channel import open_channel
from common.rpc.convert import kv_handle_from_proto
from common.rpc.server import RpcServer
from common.rpc.status import wire_error
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc, types_pb2
from services.kv_store.janitor import SWEEP_INTERVAL_S, sweep_forever
from services.kv_store.memory_store import MemoryStore
from services.kv_store.servicer import SERVICE_NAME, KvRegistryServicer

OK, NOT_FOUND, STALE = pb.KV_OUTCOME_OK, pb.KV_OUTCOME_NOT_FOUND, pb.KV_OUTCOME_STALE_INCARNATION


def attempt(request_id: str, block: int = 0, number: int = 0) -> types_pb2.BlockAttempt:
    return types_pb2.BlockAttempt(request_id=request_id, block=block, attempt=number)


def life(incarnation: int = 1, worker_id: str = "p0") -> types_pb2.WorkerLife:
    return types_pb2.WorkerLife(worker_id=worker_id, incarnation=incarnation)


def entry(request_id: str, owner: types_pb2.WorkerLife | None = None, lease_ms: int = 10_000) -> types_pb2.KvHandle:
    return types_pb2.KvHandle(
        attempt=attempt(request_id),
        owner=owner or life(),
        transport="tcp",
        address="127.0.0.1:9",
        layout_fingerprint="ab",
        canvas_tokens=64,
        pages=4,
        lease_ms=lease_ms,
    )


class Registry:
    """A client of one registry, and the hand on its clock."""

    def __init__(self, stub: kv_registry_pb2_grpc.KvRegistryServiceAsyncStub, clock: ManualClock) -> None:
        self.stub = stub
        self.clock = clock

    async def publish(self, *entries: types_pb2.KvHandle) -> list[int]:
        return list((await self.stub.PublishKv(pb.PublishKvRequest(entries=entries), timeout=10)).outcomes)

    async def get(self, *request_ids: str) -> dict[str, types_pb2.KvHandle]:
        attempts = [attempt(request_id) for request_id in request_ids]
        found = await self.stub.GetKv(pb.GetKvRequest(attempts=attempts), timeout=10)
        return {entry.attempt.request_id: entry for entry in found.entries}

    async def renew(self, owner: types_pb2.WorkerLife, lease_ms: int, *request_ids: str) -> list[int]:
        attempts = [attempt(request_id) for request_id in request_ids]
        request = pb.RenewKvRequest(owner=owner, attempts=attempts, lease_ms=lease_ms)
        return list((await self.stub.RenewKv(request, timeout=10)).outcomes)

    async def release(self, owner: types_pb2.WorkerLife, *request_ids: str) -> list[int]:
        attempts = [attempt(request_id) for request_id in request_ids]
        return list(
            (await self.stub.ReleaseKv(pb.ReleaseKvRequest(owner=owner, attempts=attempts), timeout=10)).outcomes
        )

    async def reconcile(self, owner: types_pb2.WorkerLife, *held: str) -> tuple[list[str], list[str]]:
        request = pb.ReconcileKvRequest(owner=owner, held=[attempt(request_id) for request_id in held])
        answer = await self.stub.ReconcileKv(request, timeout=10)
        return [item.request_id for item in answer.unknown], [item.request_id for item in answer.removed]

    async def fence(self, ended: types_pb2.WorkerLife) -> int:
        answer = await self.stub.FenceWorker(pb.FenceWorkerRequest(life=ended), timeout=10)
        return answer.removed_entries


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    clock = ManualClock(start_s=1000.0)
    server = RpcServer(service_names=[SERVICE_NAME])
    kv_registry_pb2_grpc.add_KvRegistryServiceServicer_to_server(KvRegistryServicer(MemoryStore(clock)), server.grpc)
    address = await server.start("127.0.0.1", 0)
    async with open_channel(address) as channel:
        yield Registry(kv_registry_pb2_grpc.KvRegistryServiceStub(channel), clock)
    await server.stop(0)


async def test_what_is_published_is_found_with_the_lease_that_is_left(registry):
    assert await registry.publish(entry("a"), entry("b", lease_ms=4000)) == [OK, OK]
    registry.clock.advance(3.0)
    found = await registry.get("b", "nobody", "a")
    assert list(found) == ["b", "a"]
    assert (found["a"].lease_ms, found["b"].lease_ms) == (7000, 1000)
    expected = entry("a", lease_ms=7000)
    assert found["a"] == expected


async def test_an_entry_past_its_lease_does_not_exist(registry):
    await registry.publish(entry("a", lease_ms=4000), entry("b", lease_ms=4001))
    registry.clock.advance(4.0)
    assert list(await registry.get("a", "b")) == ["b"]
    assert await registry.renew(life(), 5000, "a", "b") == [NOT_FOUND, OK]


async def test_every_call_may_be_repeated(registry):
    for _ in range(2):
        assert await registry.publish(entry("a"), entry("b")) == [OK, OK]
    for _ in range(2):
        assert await registry.renew(life(), 20_000, "a") == [OK]
    for _ in range(2):
        assert await registry.release(life(), "a", "unknown") == [OK, OK]
    assert list(await registry.get("a", "b")) == ["b"]
    assert [await registry.fence(life()) for _ in range(2)] == [1, 0]


async def test_a_lease_never_shrinks(registry):
    await registry.publish(entry("a", lease_ms=10_000))
    await registry.renew(life(), 1000, "a")
    await registry.publish(entry("a", lease_ms=2000))
    assert (await registry.get("a"))["a"].lease_ms == 10_000
    await registry.renew(life(), 15_000, "a")
    assert (await registry.get("a"))["a"].lease_ms == 15_000


async def test_a_fenced_life_is_gone_and_stays_gone(registry):
    await registry.publish(entry("a"), entry("b"), entry("c", owner=life(worker_id="p1")))
    assert await registry.fence(life(incarnation=2)) == 2
    assert list(await registry.get("a", "b", "c")) == ["c"]
    assert await registry.publish(entry("a"), entry("d", owner=life(2)), entry("e", owner=life(3))) == [
        STALE,
        STALE,
        OK,
    ]
    assert await registry.renew(life(2), 9000, "e") == [STALE]
    assert list(await registry.get("a", "d", "e")) == ["e"]


async def test_a_newer_life_ends_the_older_one(registry):
    await registry.publish(entry("a", owner=life(1)))
    await registry.publish(entry("b", owner=life(2)))
    assert list(await registry.get("a", "b")) == ["b"]
    assert await registry.publish(entry("a", owner=life(1))) == [STALE]


async def test_only_the_owner_renews_and_releases(registry):
    await registry.publish(entry("a"))
    other = life(worker_id="p1")
    assert await registry.renew(other, 60_000, "a") == [NOT_FOUND]
    await registry.release(other, "a")
    assert (await registry.get("a"))["a"].lease_ms == 10_000


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
