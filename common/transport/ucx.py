"""KV transport over UCX: payloads by UCXX (shared memory, RDMA, TCP: whatever UCX finds), everything else by TCP.

Each connection is a TCP connection with the frames of `frames`, and beside it a pair of UCX endpoints. TCP tells at
once, on every network, that the peer has died; it bounds connecting; refusals and acknowledgements keep their order
with it. UCX alone notices a peer killed behind shared memory after its keepalive of 20 s, and a stopped one never.
A read that does not end well closes the endpoint, which makes UCX let go of every buffer, and the connection.

Where UCX moves bytes within one machine by cross memory attach, a reader takes long runs out of the owner's memory
itself, by UCX's one-sided reads (`ucx_memory`). Elsewhere both ends exchange messages; and for short runs too, for a
read of each costs more than gathering and scattering them.

The owner also serves a reader that begins with its request, over TCP alone: that one has no UCX, or wants none.

A connection is kept for the next read from the same life: making a pair of endpoints costs milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.transport.base import KvProvider, KvSink
from common.transport.byte_stream import ByteStream
from common.transport.direct_reader import NoDirectPath
from common.transport.fetches import Delivery
from common.transport.messages import ReadRequest
from common.transport.process_memory import Standing
from common.transport.socket_transport import SocketTransport
from common.transport.ucx_direct import UcxDirectConnection
from common.transport.ucx_owner import serve_reads
from common.transport.ucx_reader import UcxConnection
from common.transport.ucx_runtime import UcxRuntime

MAX_KNOWN_OWNERS = 1024
"""Owners of which it is remembered that they are reached by messages; the ones met first go first."""


class UcxTransport(SocketTransport):
    """`KvTransport` over UCX. `carriers` and `standing` as for `UcxRuntime`; see `SocketTransport` for `limits`
    (seconds)."""

    name = "ucx"
    readable = frozenset({"ucx", "direct+ucx"})

    def __init__(self, *, carriers: str = "all", standing: Standing | None = None, **limits: float) -> None:
        """Raises `ConfigError` when UCXX is not installed."""
        super().__init__(**limits)  # type: ignore[arg-type]  # max_reads alone is a whole number
        self._runtime = UcxRuntime(carriers=carriers, standing=standing)
        self._kept = self._keep_connections(
            self.name, lambda handle, timeout_s: UcxConnection.open(handle, self._runtime, timeout_s)
        )
        self._kept_direct = self._keep_connections(
            self.name, lambda handle, timeout_s: UcxDirectConnection.open(handle, self._runtime, timeout_s)
        )
        self._by_messages: OrderedDict[WorkerLife, None] = OrderedDict()

    async def aclose(self) -> None:
        """See `KvTransport.aclose`."""
        await super().aclose()
        await self._runtime.close()

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        await serve_reads(stream, provider, self._limits, self._runtime)

    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Delivery:
        if sink.in_host_memory and sink.in_long_runs and handle.owner not in self._by_messages:
            try:
                return await self._kept_direct.read(handle, request, sink, connect_timeout_s)
            except NoDirectPath:
                self._by_messages[handle.owner] = None
                if len(self._by_messages) > MAX_KNOWN_OWNERS:
                    self._by_messages.popitem(last=False)
        return await self._kept.read(handle, request, sink, connect_timeout_s)
