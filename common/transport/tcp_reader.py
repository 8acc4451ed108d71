"""The reader's side of a TCP connection: ask, receive straight into the sink, acknowledge, perhaps ask again."""

from __future__ import annotations

import asyncio
import socket

from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.address import resolve
from common.transport.base import KvSink
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream, peer_faults
from common.transport.fetches import Received
from common.transport.frames import DataFrame, FrameDecoder, FrameKind, SinkCursor
from common.transport.messages import Accept, Ack, ControlMessage, MalformedFrame, ReadRequest, Refusal, Trailer
from common.transport.sizes import agreed_first_layer


class TcpConnection:
    """`ReaderConnection` over TCP alone."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(
            frozenset({FrameKind.ACCEPT, FrameKind.DATA, FrameKind.TRAILER, FrameKind.REFUSAL})
        )
        self.delivering = False

    @classmethod
    async def open(cls, handle: KvHandle, timeout_s: float) -> TcpConnection:
        """Connect to the owner; raises `WireError` PEER_LOST when that takes longer than `timeout_s`."""
        return cls(await connect(handle.address, timeout_s))

    @property
    def reusable(self) -> bool:
        """See `ReaderConnection.reusable`."""
        return self._stream.silent

    async def read(self, sink: KvSink, request: ReadRequest) -> Received:
        """See `ReaderConnection.read`."""
        self.delivering = False
        sink.in_runs()
        first = await ask(self._stream, self._decoder, request, sink)
        cursor = SinkCursor(sink, first)
        self._decoder.expect_data(cursor)
        while not cursor.done:
            await self._receive_data(cursor, sink)
        trailer = expect_trailer(await self._stream.receive(self._decoder))
        await self._stream.say(Ack(), stall_timeout_s=None)
        return first.size_bytes * sink.layers, trailer

    async def abort(self) -> None:
        """See `ReaderConnection.abort`."""
        self._stream.close()

    async def _receive_data(self, cursor: SinkCursor, sink: KvSink) -> None:
        """One data frame, straight into the sink; raises the owner's refusal when that comes instead."""
        frame = await self._stream.receive(self._decoder)
        if isinstance(frame, Refusal):
            raise frame.error
        if not isinstance(frame, DataFrame):
            raise MalformedFrame("accepted twice")
        self.delivering = True
        if cursor.layer_filled:
            await sink.complete(frame.layer)


async def ask(stream: ByteStream, decoder: FrameDecoder, request: ReadRequest, sink: KvSink) -> ByteRun:
    """Say `request` and hear that the owner accepts; returns the sink's layer 0.

    Raises what `accepted` and `agreed_first_layer` raise.
    """
    accept = await accepted(stream, decoder, request)
    return agreed_first_layer(sink, layers=accept.layers, layer_bytes=accept.layer_bytes)


async def accepted(stream: ByteStream, decoder: FrameDecoder, request: ReadRequest) -> Accept:
    """Say `request` and hear what the owner will send; raises its refusal, `MalformedFrame` for anything else.

    A refusal of an earlier read, which went well here, says nothing of this one but that the owner has left: PEER_LOST.
    """
    await stream.say(request, stall_timeout_s=None)
    accept = await stream.receive(decoder)
    if isinstance(accept, Refusal):
        if accept.number != request.number:
            raise WireError(Reason.PEER_LOST, "the KV owner has ended this connection with an earlier read")
        raise accept.error
    if not isinstance(accept, Accept):
        raise MalformedFrame("data before it was agreed")
    return accept


def expect_trailer(frame: ControlMessage | DataFrame) -> Trailer:
    """The trailer; raises the owner's refusal, or `MalformedFrame` when something else comes."""
    if isinstance(frame, Refusal):
        raise frame.error
    if not isinstance(frame, Trailer):
        raise MalformedFrame("something else where the trailer belongs")
    return frame


async def connect(address: str, timeout_s: float) -> ByteStream:
    """A stream to `address`; raises `WireError` PEER_LOST when there is none within `timeout_s` seconds.

    The operating system gives the stream up when what this side has sent is not confirmed for as long as that, too: a
    machine that is gone says nothing.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            with peer_faults():
                family, target = await resolve(address)
                sock = socket.socket(family, socket.SOCK_STREAM)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, target)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(1000 * timeout_s)))
                    return ByteStream(sock)
                except BaseException:
                    sock.close()
                    raise
    except TimeoutError:
        raise WireError(Reason.PEER_LOST, f"no connection to the KV peer within {timeout_s} s") from None
