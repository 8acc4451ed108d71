"""The kv_store process from ready to stopped.

Health says readiness, under both names ("" and the service's): SERVING while the store answers, NOT_SERVING while its
Redis does not. The process itself is alive as long as health answers anything at all; restarting it brings no Redis
back, so a liveness probe must not look at the status.
"""

from __future__ import annotations

import asyncio
import logging

from common.clock import MonotonicClock
from common.config import KvStoreConfig
from common.metrics.leaks import LeakWatch
from common.rpc.server import RpcServer
from common.rpc.service import write_ready_file
from sangam.v1 import kv_registry_pb2_grpc
from services.kv_store.backend import ReportReady, open_backend
from services.kv_store.servicer import SERVICE_NAME, KvRegistryServicer

_STOP_GRACE_S = 2.0
_log = logging.getLogger(__name__)


async def serve(config: KvStoreConfig, stop: asyncio.Event) -> None:
    """Serve the registry until `stop` is set, then let running calls end. Raises ConfigError if it cannot listen.

    An unreachable Redis is waited for: the port is open, calls end UNAVAILABLE, the ready file comes once it answers.
    """
    clock = MonotonicClock()
    async with open_backend(config, clock) as backend:
        server = RpcServer(service_names=[SERVICE_NAME])
        kv_registry_pb2_grpc.add_KvRegistryServiceServicer_to_server(KvRegistryServicer(backend.store), server.grpc)
        address = await server.start(config.host, config.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                leaks = LeakWatch(clock=clock, unowned=backend.unowned)
                parts = (backend.upkeep(_reporter(server, config, address)), leaks.run())
                background = [tasks.create_task(part) for part in parts]
                await stop.wait()
                for task in background:
                    task.cancel()
        finally:
            await server.stop(_STOP_GRACE_S)
    _log.info("kv_store stopped")


def _reporter(server: RpcServer, config: KvStoreConfig, address: str) -> ReportReady:
    """Turns readiness into health, and says where we serve when it is first reached."""
    served = False

    async def report(ready: bool) -> None:
        nonlocal served
        await server.set_serving(ready)
        if ready and not served:
            served = True
            write_ready_file(config.ready_file, service="kv_store", address=address)
            _log.info("kv_store serves at %s", address)

    return report
