"""What the transports over sockets share: a listener that owns its connections, and fetches that can be ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.transport.address import join, resolve
from common.transport.base import Fetched, KvProvider, KvReadRequest, KvSink
from common.transport.byte_stream import ByteStream
from common.transport.fetches import Delivery, FetchTable
from common.transport.kept_connections import C, KeptConnections
from common.transport.messages import ReadRequest
from common.transport.owner_session import OwnerLimits

_log = logging.getLogger(__name__)
_BACKLOG = 512
_ACCEPT_PAUSE_S = 0.1


class SocketTransport(ABC):
    """The common part of all transports over sockets. Made inside the event loop that uses it.

    `connect_timeout_s`, `handshake_timeout_s`, `stall_timeout_s` and `read_timeout_s` (seconds) bound a peer's silence
    while connecting, before its request, without progress, and a whole read; `max_reads` bounds connections served at
    once.
    """

    name: str
    readable: frozenset[str]

    def __init__(
        self,
        *,
        connect_timeout_s: float = 5.0,
        handshake_timeout_s: float = 5.0,
        stall_timeout_s: float = 10.0,
        read_timeout_s: float = 600.0,
        max_reads: int = 1024,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._limits = OwnerLimits(
            handshake_timeout_s=handshake_timeout_s, stall_timeout_s=stall_timeout_s, read_timeout_s=read_timeout_s
        )
        self._max_reads = max_reads
        self._fetches = FetchTable()
        self._request_numbers = itertools.count(1)
        self._pools: list[KeptConnections[Any]] = []
        self._server: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._reads = 0
        self._closed = False

    @abstractmethod
    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        """Serve a fresh connection to its end; the caller closes it."""

    @abstractmethod
    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Delivery:
        """One whole read. Raises as `KvTransport.fetch`, its timeout excepted."""

    def _keep_connections(self, path: str, connect: Callable[[KvHandle, float], Awaitable[C]]) -> KeptConnections[C]:
        """A pool of connections made by `connect`, which ends with the lives it reads from and with this transport."""
        pool = KeptConnections(path, connect)
        self._pools.append(pool)
        return pool

    async def listen(self, host: str, provider: KvProvider, *, port: int = 0) -> str:
        """See `KvTransport.listen`. Raises `OSError` when `host` is not this machine's, or the port is taken."""
        assert self._server is None and not self._closed, "one listener per transport"
        family, target = await resolve(join(host, port))
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            # A worker that comes back takes its old port again, whatever connections of its former life linger.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._server = asyncio.create_task(self._accept_loop(listener, provider), name=f"kv-{self.name}-accept")
        return join(host, listener.getsockname()[1])

    async def watch(self) -> None:
        """See `KvTransport.watch`."""
        if self._server is not None:
            await asyncio.wait([self._server])
            if not self._server.cancelled():
                self._server.result()

    async def fetch(self, *, handle: KvHandle, sink: KvSink, timeout_s: float, early: bool = False) -> Fetched:
        """See `KvTransport.fetch`."""
        request = ReadRequest(
            number=next(self._request_numbers), read=KvReadRequest.of(handle, early=early), timeout_s=timeout_s
        )
        read = self._read(handle, request, sink, min(self._connect_timeout_s, timeout_s))
        return await self._fetches.run(handle.owner, read, timeout_s)

    async def close_peer(self, life: WorkerLife) -> None:
        """See `KvTransport.close_peer`."""
        await self._fetches.end(life, f"worker {life.worker_id} is lost")
        for pool in self._pools:
            await pool.forget(life)

    async def aclose(self) -> None:
        """See `KvTransport.aclose`."""
        self._closed = True
        if self._server is not None:
            self._server.cancel()
            await asyncio.wait([self._server])
        if self._listener is not None:
            # A server that was cancelled before it began has not closed it.
            self._listener.close()
        await self._fetches.close()
        for pool in self._pools:
            await pool.close()

    async def _accept_loop(self, listener: socket.socket, provider: KvProvider) -> None:
        """Owns the listener and every read it leads to: cancelling this task ends them all."""
        loop = asyncio.get_running_loop()
        with listener:
            async with asyncio.TaskGroup() as reads:
                while True:
                    try:
                        sock, _ = await loop.sock_accept(listener)
                    except OSError as error:
                        # Out of descriptors, or the peer left the queue: neither is a reason to stop serving.
                        _log.warning("KV accept failed: %s", error)
                        await asyncio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    if self._reads >= self._max_reads:
                        sock.close()
                        continue
                    self._reads += 1
                    reads.create_task(self._serve(sock, provider))

    async def _serve(self, sock: socket.socket, provider: KvProvider) -> None:
        try:
            with sock:
                await self._serve_connection(ByteStream(sock), provider)
        except OSError as error:
            _log.info("KV connection ended before it was set up: %s", error)
        finally:
            self._reads -= 1
