"""KV transport that takes the best path both ends have: direct within one machine, else UCX, else TCP.

Where the kernel does not let a reader see its owner's memory, between users or PID namespaces, the path is TCP: shared
memory takes the same permissions, and UCX over TCP is slower.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.base import KvProvider, KvSink
from common.transport.byte_stream import ByteStream
from common.transport.direct_owner import serve_direct
from common.transport.direct_reader import DirectConnection, NoDirectPath, Reach
from common.transport.fetches import Delivery
from common.transport.frames import FrameDecoder, FrameKind
from common.transport.kept_connections import KeptConnections
from common.transport.messages import DirectHello, ReadRequest, Refusal, UcxPeer
from common.transport.owner_session import first_frame
from common.transport.process_memory import Machine, ReadMemory, read_memory, this_machine
from common.transport.socket_transport import SocketTransport
from common.transport.tcp_owner import serve_inline
from common.transport.tcp_reader import TcpConnection
from common.transport.ucx_introduction import NoUcxPath
from common.transport.ucx_on_demand import UcxOnDemand
from common.transport.ucx_owner import serve_peer
from common.transport.ucx_reader import UcxConnection
from common.transport.ucx_runtime import UcxRuntime

_log = logging.getLogger(__name__)

MAX_KNOWN_OWNERS = 1024
"""Owners whose path is remembered; the ones met first go first."""

_WITH_UCX, _WITHOUT_UCX = "direct+ucx", "direct+tcp"
_UCX_TOO = frozenset({"ucx", _WITH_UCX})
_DIRECT_TOO = frozenset({_WITH_UCX, _WITHOUT_UCX})


class AutoTransport(SocketTransport):
    """Owners serve each reader as it comes; a reader tries the direct path once for each life of an owner.

    `ucx` where it is installed; this closes it. `machine`: where this process runs, `this_machine` unless
    given; `read`: how another's memory is read. See `SocketTransport` for `limits` (seconds).
    """

    readable = frozenset({"tcp", "ucx", _WITH_UCX, _WITHOUT_UCX})

    def __init__(
        self,
        *,
        ucx: UcxOnDemand | None,
        machine: Machine | None = None,
        read: ReadMemory = read_memory,
        **limits: float,
    ) -> None:
        super().__init__(**limits)  # type: ignore[arg-type]  # max_reads alone is a whole number
        self.name = _WITHOUT_UCX if ucx is None else _WITH_UCX
        self._ucx = ucx
        self._machine = machine or this_machine()
        reach = Reach(machine=self._machine, read=read)
        self._kept_direct = self._keep_connections(
            "direct", lambda handle, timeout_s: DirectConnection.open(handle, reach, timeout_s)
        )
        self._kept_tcp = self._keep_connections("tcp", TcpConnection.open)
        self._kept_ucx: KeptConnections[Any] = self._kept_tcp
        if ucx is not None:
            self._kept_ucx = self._keep_connections("ucx", self._open_ucx)
        self._paths: OrderedDict[WorkerLife, str] = OrderedDict()

    async def aclose(self) -> None:
        """See `KvTransport.aclose`."""
        await super().aclose()
        if self._ucx is not None:
            await self._ucx.close()

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        kinds = {FrameKind.DIRECT_HELLO, FrameKind.REQUEST, FrameKind.ACK}
        if self._ucx is not None:
            kinds.add(FrameKind.PEER)
        decoder = FrameDecoder(frozenset(kinds))
        hello = await first_frame(stream, decoder, self._limits)
        if isinstance(hello, DirectHello):
            await serve_direct(hello, stream, decoder, provider, self._limits, self._machine)
        elif isinstance(hello, UcxPeer):
            await self._serve_ucx(hello, stream, provider)
        elif isinstance(hello, ReadRequest):
            await serve_inline(hello, stream, decoder, provider, self._limits)
        elif hello is not None:
            _log.warning("KV connection dropped: %s instead of a request", type(hello).__name__)

    async def _serve_ucx(self, hello: UcxPeer, stream: ByteStream, provider: KvProvider) -> None:
        if (runtime := await self._started_ucx()) is not None:
            await serve_peer(hello, stream, provider, self._limits, runtime)
            return
        refusal = Refusal(error=WireError(Reason.LAYOUT_MISMATCH, "UCX does not start at the owner"), number=0)
        try:
            await stream.say(refusal, stall_timeout_s=self._limits.stall_timeout_s)
        except WireError as error:
            _log.debug("KV connection ends: %s", error)

    async def _open_ucx(self, handle: KvHandle, timeout_s: float) -> UcxConnection:
        if (runtime := await self._started_ucx()) is None:
            raise NoUcxPath("UCX does not start at the reader")
        return await UcxConnection.open(handle, runtime, timeout_s)

    async def _started_ucx(self) -> UcxRuntime | None:
        return None if self._ucx is None else await self._ucx.runtime()

    async def _read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Delivery:
        known = self._paths.get(handle.owner)
        other = self._kept_ucx if handle.transport in _UCX_TOO and known != "tcp" else self._kept_tcp
        if known in (None, "direct") and sink.in_host_memory and handle.transport in _DIRECT_TOO:
            try:
                delivery = await self._kept_direct.read(handle, request, sink, connect_timeout_s)
                self._note(handle.owner, delivery.path, "")
                return delivery
            except NoDirectPath as error:
                other = self._kept_tcp if error.one_machine else other
                self._note(handle.owner, other.path, f" ({error.message})")
        try:
            delivery = await other.read(handle, request, sink, connect_timeout_s)
        except NoUcxPath as error:
            self._note(handle.owner, "tcp", f" ({error.message})")
            delivery = await self._kept_tcp.read(handle, request, sink, connect_timeout_s)
        self._note(handle.owner, delivery.path, "")
        return delivery

    def _note(self, owner: WorkerLife, path: str, why: str) -> None:
        """Remember which path leads to that life, and say so when it is news."""
        if self._paths.get(owner) == path:
            return
        self._paths[owner] = path
        if len(self._paths) > MAX_KNOWN_OWNERS:
            self._paths.popitem(last=False)
        _log.info("K/V of %s life %d comes by %s%s", owner.worker_id, owner.incarnation, path, why)
