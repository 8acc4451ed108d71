"""A peer on a raw socket that speaks the KV wire format by hand, right or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from common.errors import Reason, WireError
from common.transport.base import KvReadRequest
from common.transport.checksum import payload_checksum
from common.transport.frames import HEADER_BYTES, DataFrame, encode_control, encode_data_header
from common.transport.messages import Accept, ReadRequest, Refusal, Trailer
from tests.transport.doubles import AGE_S, LAYOUT, OWNER, attempt

PeerScript = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves a connection whose first frame, header and all, has been read already."""


def request_frame(number: int = 0, timeout_s: float = 20.0, *, early: bool = False) -> bytes:
    read = KvReadRequest(attempt=attempt(number), owner=OWNER, layout_fingerprint=LAYOUT, pages=1, early=early)
    return encode_control(ReadRequest(number=1, read=read, timeout_s=timeout_s))


def accept_frame(layers: int, layer_bytes: int) -> bytes:
    return encode_control(Accept(layers=layers, layer_bytes=layer_bytes))


def refusal_frame(reason: Reason, message: str, *, request: bytes = b"") -> bytes:
    """A refusal of what the connection began with, or of the whole frame `request`."""
    number = ReadRequest.decode(request[HEADER_BYTES:]).number if request else 0
    return encode_control(Refusal(error=WireError(reason, message), number=number))


def data_frame(layer: int, offset_bytes: int, payload: bytes) -> bytes:
    frame = DataFrame(layer=layer, offset_bytes=offset_bytes, length_bytes=len(payload))
    return encode_data_header(frame, payload_checksum(payload)) + payload


def trailer_frame(data: bytes = b"") -> bytes:
    return encode_control(Trailer(data=data, computed_ago_s=AGE_S))


async def read_frame(stream: asyncio.StreamReader) -> bytes:
    """The next whole frame, header and all."""
    header = await stream.readexactly(HEADER_BYTES)
    return header + await stream.readexactly(int.from_bytes(header[20:28], "little"))


@contextlib.asynccontextmanager
async def scripted_owner(script: PeerScript) -> AsyncIterator[str]:
    """Address of an owner that reads the first frame of each connection and then does what `script` says."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(await read_frame(reader), reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(20.0):
            await done.wait()


@contextlib.asynccontextmanager
async def raw_reader(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A plain connection to an owner; closed hard at the end, unread bytes and all."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
