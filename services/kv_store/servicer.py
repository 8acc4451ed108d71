"""KvRegistryService over a `KvStore`: messages in, dataclasses to the store, messages out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import grpc.aio

from common.core.ids import BlockAttempt, WorkerLife
from common.core.registry import KvOutcome
from common.rpc.convert import (
    block_attempt_from_proto,
    block_attempt_to_proto,
    kv_handle_from_proto,
    kv_handle_to_proto,
    worker_life_from_proto,
)
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc, types_pb2
from services.kv_store.store import KvStore

SERVICE_NAME = "sangam.v1.KvRegistryService"

_OUTCOMES = {
    KvOutcome.OK: pb.KV_OUTCOME_OK,
    KvOutcome.NOT_FOUND: pb.KV_OUTCOME_NOT_FOUND,
    KvOutcome.STALE_INCARNATION: pb.KV_OUTCOME_STALE_INCARNATION,
}

Context = grpc.aio.ServicerContext[Any, Any]


class KvRegistryServicer(kv_registry_pb2_grpc.KvRegistryServiceServicer):
    """Malformed entries raise InvalidRequest before anything is stored: a batch is taken whole or not at all."""

    def __init__(self, store: KvStore) -> None:
        self._store = store

    async def PublishKv(self, request: pb.PublishKvRequest, context: Context) -> pb.PublishKvResponse:
        """Record entries."""
        entries = [kv_handle_from_proto(entry, f"entries[{index}]") for index, entry in enumerate(request.entries)]
        return pb.PublishKvResponse(outcomes=_to_proto(await self._store.publish(entries)))

    async def GetKv(self, request: pb.GetKvRequest, context: Context) -> pb.GetKvResponse:
        """Look entries up."""
        found = await self._store.get(_attempts(request.attempts, "attempts"))
        return pb.GetKvResponse(entries=[kv_handle_to_proto(entry) for entry in found])

    async def RenewKv(self, request: pb.RenewKvRequest, context: Context) -> pb.RenewKvResponse:
        """Extend leases."""
        attempts = _attempts(request.attempts, "attempts")
        outcomes = await self._store.renew(_owner(request.owner), attempts, request.lease_ms / 1000)
        return pb.RenewKvResponse(outcomes=_to_proto(outcomes))

    async def ReleaseKv(self, request: pb.ReleaseKvRequest, context: Context) -> pb.ReleaseKvResponse:
        """Remove entries."""
        outcomes = await self._store.release(_owner(request.owner), _attempts(request.attempts, "attempts"))
        return pb.ReleaseKvResponse(outcomes=_to_proto(outcomes))

    async def ReconcileKv(self, request: pb.ReconcileKvRequest, context: Context) -> pb.ReconcileKvResponse:
        """Compare holdings."""
        difference = await self._store.reconcile(_owner(request.owner), _attempts(request.held, "held"))
        return pb.ReconcileKvResponse(
            unknown=[block_attempt_to_proto(attempt) for attempt in difference.unknown],
            removed=[block_attempt_to_proto(attempt) for attempt in difference.removed],
        )

    async def FenceWorker(self, request: pb.FenceWorkerRequest, context: Context) -> pb.FenceWorkerResponse:
        """End a life for the registry."""
        removed = await self._store.fence(worker_life_from_proto(request.life))
        return pb.FenceWorkerResponse(removed_entries=removed)


def _owner(message: types_pb2.WorkerLife) -> WorkerLife:
    return worker_life_from_proto(message, "owner")


def _attempts(messages: Iterable[types_pb2.BlockAttempt], path: str) -> list[BlockAttempt]:
    return [block_attempt_from_proto(message, f"{path}[{index}]") for index, message in enumerate(messages)]


def _to_proto(outcomes: Sequence[KvOutcome]) -> list[pb.KvOutcome]:
    return [_OUTCOMES[outcome] for outcome in outcomes]
