"""Tells the KV registry which worker lives have ended: in the background, again until it has heard."""

from __future__ import annotations

import asyncio
import logging

import grpc

from common.backoff import Backoff
from common.core.ids import WorkerId, WorkerLife
from common.rpc.channel import open_channel
from sangam.v1 import kv_registry_pb2, kv_registry_pb2_grpc, types_pb2

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 2.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0


class RegistryFencer:
    """Best effort towards the registry: nothing ever waits for it, and only the newest life of a worker is kept.

    `address` is the registry's host:port; empty: there is none, and fencing does nothing.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._pending: dict[WorkerId, int] = {}
        self._wake = asyncio.Event()

    def fence(self, life: WorkerLife) -> None:
        """Have the registry drop this life's entries and every earlier one's, soon."""
        if self._address:
            self._pending[life.worker_id] = max(life.incarnation, self._pending.get(life.worker_id, 0))
            self._wake.set()

    async def run(self) -> None:
        """Work the list off until cancelled."""
        if not self._address:
            return
        async with open_channel(self._address) as channel:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._flush(kv_registry_pb2_grpc.KvRegistryServiceStub(channel))

    async def _flush(self, stub: kv_registry_pb2_grpc.KvRegistryServiceAsyncStub) -> None:
        backoff = Backoff(first_s=FIRST_BACKOFF_S, longest_s=MAX_BACKOFF_S, jitter=True)
        while self._pending:
            worker_id, incarnation = next(iter(self._pending.items()))
            life = types_pb2.WorkerLife(worker_id=worker_id, incarnation=incarnation)
            try:
                await stub.FenceWorker(kv_registry_pb2.FenceWorkerRequest(life=life), timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                log.warning("registry did not fence %s (%s); trying again", worker_id, error.code().name)
                await backoff.wait()
                continue
            if self._pending.get(worker_id) == incarnation:
                del self._pending[worker_id]
