"""KV transport within one machine: the reader takes the pages out of the owner's memory itself (`process_vm_readv`).

Each connection is a TCP connection with the frames of `frames`; in place of payloads come `Lent`s, which say where the
bytes lie in the owner's memory and what their checksum is. The owner copies nothing and sums while the reader copies;
the pages stay lent until the reader's acknowledgement. A reader copies whenever it gets to it, perhaps after the owner
has taken the pages back: whatever it then finds does not match a sum that was made while they were lent. Nothing is
ever written by the other side, so a read that ends, ends at once.

It takes one kernel, one PID namespace, and the permission that debuggers need; the owner proves that its process number
means itself here too (`memory_proof`). GPU memory cannot be had this way. `AutoTransport` goes on by other means then.
"""

from __future__ import annotations

from common.core.work import KvHandle
from common.transport.base import KvProvider, KvSink
from common.transport.byte_stream import ByteStream
from common.transport.direct_owner import serve_direct
from common.transport.direct_reader import DirectConnection, NoDirectPath, Reach
from common.transport.fetches import Delivery
from common.transport.frames import FrameDecoder, FrameKind
from common.transport.messages import DirectHello, ReadRequest
from common.transport.owner_session import first_frame
from common.transport.process_memory import Machine, ReadMemory, read_memory, this_machine
from common.transport.socket_transport import SocketTransport


class DirectTransport(SocketTransport):
    """`KvTransport` by direct reads alone, for tests and measurements: where they cannot be, a fetch fails.

    `machine` and `read` are what `AutoTransport` says of them; see `SocketTransport` for `limits` (seconds).
    """

    name = "direct"
    readable = frozenset({"direct"})

    def __init__(self, *, machine: Machine | None = None, read: ReadMemory = read_memory, **limits: float) -> None:
        super().__init__(**limits)  # type: ignore[arg-type]  # max_reads alone is a whole number
        self._reach = Reach(machine=machine or this_machine(), read=read)
        self._kept = self._keep_connections(
            self.name, lambda handle, timeout_s: DirectConnection.open(handle, self._reach, timeout_s)
        )

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        decoder = FrameDecoder(frozenset({FrameKind.DIRECT_HELLO, FrameKind.REQUEST, FrameKind.ACK}))
        hello = await first_frame(stream, decoder, self._limits)
        if isinstance(hello, DirectHello):
            await serve_direct(hello, stream, decoder, provider, self._limits, self._reach.machine)

    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Delivery:
        if not sink.in_host_memory:
            raise NoDirectPath("this worker's pages are not in host memory")
        return await self._kept.read(handle, request, sink, connect_timeout_s)
