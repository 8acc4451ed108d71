"""A gRPC server with what every service needs: our options and interceptor, health, reflection, graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.errors import ConfigError
from common.rpc import metrics
from common.rpc.interceptors import ErrorInterceptor
from common.rpc.options import server_options
from common.rpc.shared_port import MOVE_S, take_new_connections
from sangam.v1 import metrics_pb2_grpc

CLOSE_S = 3.0
"""How long a server that has cancelled its last calls waits for their connections to be closed."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RpcServer:
    """Add servicers to `.grpc`, then `start`. Create it inside the event loop that will serve.

    Health, reflection and MetricsService are there already.

    `service_names` are the full names ("sangam.v1.DecodeService") that health and reflection speak of. `shares_port`:
    the next life of the service may listen at the same port before this one stops.
    """

    def __init__(self, *, service_names: Sequence[str], shares_port: bool = False) -> None:
        self.grpc = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options(shares_port=shares_port))
        self._shares_port = shares_port
        self._service_names = tuple(service_names)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        metrics_pb2_grpc.add_MetricsServiceServicer_to_server(metrics.MetricsServicer(), self.grpc)
        listed = (*service_names, metrics.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, self.grpc)

    async def start(self, host: str, port: int) -> str:
        """Listen on `host`:`port` (0: any free port), not serving yet; returns the address bound.

        Raises ConfigError when the address cannot be bound.
        """
        await self.set_serving(False)
        bracketed = f"[{host}]" if ":" in host else host
        try:
            bound_port = self.grpc.add_insecure_port(f"{bracketed}:{port}")
        except RuntimeError:
            raise ConfigError(f"--host, --port: cannot listen on {bracketed}:{port}") from None
        await self.grpc.start()
        if self._shares_port:
            take_new_connections(bound_port)
        return f"{bracketed}:{bound_port}"

    async def set_serving(self, serving: bool, *, whole: bool | None = None) -> None:
        """What the health service answers from now on, for each service and for the server as a whole.

        `whole`: what it answers for the server, where that differs (a standby is well, and serves nothing yet).
        """
        statuses = health_pb2.HealthCheckResponse.ServingStatus
        for name in ("", *self._service_names):
            serves = whole if whole is not None and not name else serving
            await self._health.set(name, statuses.SERVING if serves else statuses.NOT_SERVING)

    async def move_clients(self) -> None:
        """Another life has begun to listen at the same port: serve until no client calls this one any more."""
        assert self._shares_port, "nobody else can be there"
        await asyncio.sleep(MOVE_S)

    async def stop(self, grace_s: float) -> None:
        """Answer NOT_SERVING, refuse new calls, give running ones `grace_s` seconds, then cancel them."""
        # It waits for each watcher to have got the word before, and one that stands still may never get it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._health.enter_graceful_shutdown()
        # gRPC then waits for each connection to end, and one with words unread ends by its keepalive only.
        stopping = asyncio.ensure_future(self.grpc.stop(grace_s))
        await asyncio.wait([stopping], timeout=grace_s + CLOSE_S)


def run_until_signal(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `main(stop)` in a fresh event loop; SIGTERM or SIGINT sets `stop`, and `main` then ends by itself."""

    async def supervised() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    asyncio.run(supervised())
