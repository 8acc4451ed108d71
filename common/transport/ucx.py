"""KV transport over UCX: payloads by UCXX (shared memory, RDMA, TCP: whatever UCX finds), everything else by TCP.

Each connection is a TCP connection with the frames of `frames`, and beside it a pair of UCX endpoints. TCP tells at
once, on every network, that the peer has died; it bounds connecting; refusals and acknowledgements keep their order
with it. UCX alone notices a peer killed behind shared memory after its keepalive of 20 s, and a stopped one never.
A read that does not end well closes the endpoint, which makes UCX let go of every buffer, and the connection.

The owner also serves a reader that begins with its request, over TCP alone: that one has no UCX, or wants none.

A connection is kept for the next read from the same life: making a pair of endpoints costs milliseconds.
"""

from __future__ import annotations

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.base import KvProvider, KvSink
from common.transport.byte_stream import ByteStream
from common.transport.fetches import Received
from common.transport.messages import ReadRequest
from common.transport.socket_transport import SocketTransport
from common.transport.tcp_reader import read_into
from common.transport.ucx_owner import serve_reads
from common.transport.ucx_reader import UcxConnection
from common.transport.ucx_runtime import UcxRuntime

MAX_IDLE_CONNECTIONS = 8
"""Connections kept for the next read, to one life."""

_Peer = tuple[WorkerLife, str]


class UcxTransport(SocketTransport):
    """`KvTransport` over UCX. `carriers` as for `UcxRuntime`; see `SocketTransport` for `limits` (seconds)."""

    name = "ucx"
    readable = frozenset({"ucx"})

    def __init__(self, *, carriers: str = "all", **limits: float) -> None:
        """Raises `ConfigError` when UCXX is not installed."""
        super().__init__(**limits)  # type: ignore[arg-type]  # max_reads alone is a whole number
        self._runtime = UcxRuntime(carriers=carriers)
        self._idle: dict[_Peer, list[UcxConnection]] = {}

    async def close_peer(self, life: WorkerLife) -> None:
        """See `KvTransport.close_peer`."""
        await super().close_peer(life)
        for peer in [peer for peer in self._idle if peer[0] == life]:
            await self._forget(peer)

    async def aclose(self) -> None:
        """See `KvTransport.aclose`."""
        await super().aclose()
        for peer in tuple(self._idle):
            await self._forget(peer)
        await self._runtime.close()

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        await serve_reads(stream, provider, self._limits, self._runtime)

    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Received:
        peer = (handle.owner, handle.address)
        if (kept := await self._take_idle(peer)) is not None:
            try:
                return await self._read_over(kept, peer, request, sink)
            except WireError as error:
                # It may have died of old age: only a fresh connection says that the peer is lost.
                if kept.accepted or error.reason is not Reason.PEER_LOST:
                    raise
        fresh = await UcxConnection.open(handle.address, self._runtime, timeout_s=connect_timeout_s)
        return await self._read_over(fresh, peer, request, sink)

    async def _read_over(self, connection: UcxConnection, peer: _Peer, request: ReadRequest, sink: KvSink) -> Received:
        try:
            received = await connection.read(sink, request)
        except BaseException:
            self._runtime.note_strays()
            await connection.abort()
            raise
        kept = self._idle.setdefault(peer, [])
        if self._closed or len(kept) >= MAX_IDLE_CONNECTIONS:
            await connection.abort()
        else:
            kept.append(connection)
        return received

    async def _take_idle(self, peer: _Peer) -> UcxConnection | None:
        while kept := self._idle.get(peer):
            connection = kept.pop()
            if connection.reusable:
                return connection
            await connection.abort()
        self._idle.pop(peer, None)
        return None

    async def _forget(self, peer: _Peer) -> None:
        for connection in self._idle.pop(peer, []):
            await connection.abort()


class AutoTransport(UcxTransport):
    """UCX where both ends have it: an owner offers it, a reader takes it where it is offered, and TCP elsewhere."""

    readable = frozenset({"ucx", "tcp"})

    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Received:
        if handle.transport == self.name:
            return await super()._read(handle, request, sink, connect_timeout_s)
        return await read_into(sink, handle.address, request, connect_timeout_s=connect_timeout_s)
