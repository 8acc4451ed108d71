"""The kv_store process from ready to stopped."""

from __future__ import annotations

import asyncio
import logging

from common.clock import MonotonicClock
from common.config import KvStoreConfig
from common.rpc.server import RpcServer
from common.rpc.service import write_ready_file
from sangam.v1 import kv_registry_pb2_grpc
from services.kv_store.janitor import sweep_forever
from services.kv_store.memory_store import MemoryStore
from services.kv_store.servicer import SERVICE_NAME, KvRegistryServicer

_STOP_GRACE_S = 2.0
_log = logging.getLogger(__name__)


async def serve(config: KvStoreConfig, stop: asyncio.Event) -> None:
    """Serve the registry until `stop` is set, then let running calls end. Raises ConfigError if it cannot listen."""
    clock = MonotonicClock()
    store = MemoryStore(clock)
    server = RpcServer(service_names=[SERVICE_NAME])
    kv_registry_pb2_grpc.add_KvRegistryServiceServicer_to_server(KvRegistryServicer(store), server.grpc)
    address = await server.start(config.host, config.port)
    try:
        async with asyncio.TaskGroup() as tasks:
            janitor = tasks.create_task(sweep_forever(store, clock))
            await server.set_serving(True)
            write_ready_file(config.ready_file, service="kv_store", address=address)
            _log.info("kv_store serves at %s", address)
            await stop.wait()
            janitor.cancel()
    finally:
        await server.stop(_STOP_GRACE_S)
    _log.info("kv_store stopped")
