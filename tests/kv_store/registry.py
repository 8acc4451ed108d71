"""A client of one registry, in words short enough for tests."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from common.rpc.channel import open_channel
from common.rpc.server import RpcServer
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc, types_pb2
from services.kv_store.servicer import SERVICE_NAME, KvRegistryServicer
from services.kv_store.store import KvStore

OK, NOT_FOUND, STALE = pb.KV_OUTCOME_OK, pb.KV_OUTCOME_NOT_FOUND, pb.KV_OUTCOME_STALE_INCARNATION

HOUR_S = 3600
HOUR_MS = 3_600_000
"""Leases in the tests are whole hours, so that the time a test itself takes never shows in them."""


def attempt(request_id: str, block: int = 0, number: int = 0) -> types_pb2.BlockAttempt:
    return types_pb2.BlockAttempt(request_id=request_id, block=block, attempt=number)


def life(incarnation: int = 1, worker_id: str = "p0") -> types_pb2.WorkerLife:
    return types_pb2.WorkerLife(worker_id=worker_id, incarnation=incarnation)


def entry(
    request_id: str, owner: types_pb2.WorkerLife | None = None, lease_ms: int = 10 * HOUR_MS
) -> types_pb2.KvHandle:
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


def hours_left(found: types_pb2.KvHandle) -> int:
    """What is left of a lease, rounded up."""
    return math.ceil(found.lease_ms / HOUR_MS)


class Registry:
    """A client of one registry, and the hand on its clock (`advance`, in seconds)."""

    def __init__(self, stub: kv_registry_pb2_grpc.KvRegistryServiceAsyncStub, advance: Callable[[float], None]) -> None:
        self.stub = stub
        self.advance = advance

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
        request = pb.ReleaseKvRequest(owner=owner, attempts=[attempt(request_id) for request_id in request_ids])
        return list((await self.stub.ReleaseKv(request, timeout=10)).outcomes)

    async def reconcile(self, owner: types_pb2.WorkerLife, *held: str) -> tuple[list[str], list[str]]:
        request = pb.ReconcileKvRequest(owner=owner, held=[attempt(request_id) for request_id in held])
        answer = await self.stub.ReconcileKv(request, timeout=10)
        return [item.request_id for item in answer.unknown], [item.request_id for item in answer.removed]

    async def fence(self, ended: types_pb2.WorkerLife) -> int:
        answer = await self.stub.FenceWorker(pb.FenceWorkerRequest(life=ended), timeout=10)
        return answer.removed_entries


@asynccontextmanager
async def served(store: KvStore, advance: Callable[[float], None]) -> AsyncIterator[Registry]:
    """A client of the service over `store`."""
    server = RpcServer(service_names=[SERVICE_NAME])
    kv_registry_pb2_grpc.add_KvRegistryServiceServicer_to_server(KvRegistryServicer(store), server.grpc)
    address = await server.start("127.0.0.1", 0)
    try:
        async with open_channel(address) as channel:
            yield Registry(kv_registry_pb2_grpc.KvRegistryServiceStub(channel), advance)
    finally:
        await server.stop(0)
