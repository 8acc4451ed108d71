"""The reader's side of one TCP read: connect, ask, receive straight into the sink, acknowledge."""

from __future__ import annotations

import asyncio
import socket

from common.errors import Reason, WireError
from common.transport.address import resolve
from common.transport.base import KvSink
from common.transport.byte_stream import ByteStream, peer_faults
from common.transport.fetches import Received
from common.transport.frames import DataFrame, FrameDecoder, FrameKind, SinkCursor, encode_control
from common.transport.messages import Accept, Ack, ControlMessage, MalformedFrame, ReadRequest, Refusal, Trailer
from common.transport.sizes import agreed_first_layer


async def read_into(sink: KvSink, address: str, request: ReadRequest, *, connect_timeout_s: float) -> Received:
    """Run one whole read; returns the size of the payload and the trailer.

    Raises `WireError` as `KvTransport.fetch` does, its timeout excepted: the caller bounds the whole.
    """
    payload = encode_control(request)
    stream = await connect(address, connect_timeout_s)
    try:
        await _say(stream, payload)
        decoder = FrameDecoder(frozenset({FrameKind.ACCEPT, FrameKind.DATA, FrameKind.TRAILER, FrameKind.REFUSAL}))
        accept = await stream.receive(decoder)
        if isinstance(accept, Refusal):
            raise accept.error
        assert isinstance(accept, Accept), "the decoder refuses data that was not agreed"
        first = agreed_first_layer(sink, layers=accept.layers, layer_bytes=accept.layer_bytes)
        cursor = SinkCursor(sink, first)
        decoder.expect_data(cursor)
        while not cursor.done:
            await _receive_data(stream, decoder, cursor, sink)
        trailer = expect_trailer(await stream.receive(decoder))
        await _say(stream, encode_control(Ack()))
        return first.size_bytes * sink.layers, trailer
    finally:
        stream.close()


async def _receive_data(stream: ByteStream, decoder: FrameDecoder, cursor: SinkCursor, sink: KvSink) -> None:
    """One data frame, straight into the sink; raises the owner's refusal when that comes instead."""
    frame = await stream.receive(decoder)
    if isinstance(frame, Refusal):
        raise frame.error
    if not isinstance(frame, DataFrame):
        raise MalformedFrame("accepted twice")
    if cursor.layer_filled:
        await sink.complete(frame.layer)


def expect_trailer(frame: ControlMessage | DataFrame) -> Trailer:
    """The trailer; raises the owner's refusal, or `MalformedFrame` when something else comes."""
    if isinstance(frame, Refusal):
        raise frame.error
    if not isinstance(frame, Trailer):
        raise MalformedFrame("something else where the trailer belongs")
    return frame


async def _say(stream: ByteStream, frame: bytes) -> None:
    await stream.send([memoryview(frame)], stall_timeout_s=None)


async def connect(address: str, timeout_s: float) -> ByteStream:
    """A stream to `address`; raises `WireError` PEER_LOST when there is none within `timeout_s` seconds."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            with peer_faults():
                family, target = await resolve(address)
                sock = socket.socket(family, socket.SOCK_STREAM)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, target)
                    return ByteStream(sock)
                except BaseException:
                    sock.close()
                    raise
    except TimeoutError:
        raise WireError(Reason.PEER_LOST, f"no connection to the KV peer within {timeout_s} s") from None
