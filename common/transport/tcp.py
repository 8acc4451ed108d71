"""KV transport over plain TCP: connections kept for the next read, bytes from pool to socket to pool.

The kernel's loopback or network path does the rest. Everything runs on the event loop in turns of at most
`MAX_DATA_BYTES`, each with a checksum of its own, so a transfer never holds up a health check.
"""

from __future__ import annotations

from common.core.work import KvHandle
from common.transport.base import KvProvider, KvSink
from common.transport.byte_stream import ByteStream
from common.transport.fetches import Delivery
from common.transport.messages import ReadRequest
from common.transport.socket_transport import SocketTransport
from common.transport.tcp_owner import serve_reads
from common.transport.tcp_reader import TcpConnection


class TcpTransport(SocketTransport):
    """`KvTransport` over TCP; see `SocketTransport` for the limits."""

    name = "tcp"
    # An owner that offers ucx, or lets its memory be read, serves readers who ask over TCP alone, too.
    readable = frozenset({"tcp", "ucx", "direct+ucx", "direct+tcp"})

    def __init__(self, **limits: float) -> None:
        super().__init__(**limits)  # type: ignore[arg-type]  # max_reads alone is a whole number
        self._kept = self._keep_connections(self.name, TcpConnection.open)

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        await serve_reads(stream, provider, self._limits)

    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Delivery:
        return await self._kept.read(handle, request, sink, connect_timeout_s)
