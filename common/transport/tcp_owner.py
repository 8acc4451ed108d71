"""The owner's side of a TCP connection: one request, payloads between the frames, done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NoReturn

from common.errors import WireError
from common.transport.base import KvProvider
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.frames import MAX_DATA_BYTES, DataFrame, FrameDecoder, FrameKind, encode_data_header
from common.transport.messages import ReadRequest
from common.transport.owner_session import OwnerLimits, OwnerSession

_log = logging.getLogger(__name__)


async def serve_read(stream: ByteStream, provider: KvProvider, limits: OwnerLimits) -> None:
    """Serve the one read of a fresh connection; the caller closes `stream` afterwards."""
    decoder = FrameDecoder(frozenset({FrameKind.REQUEST, FrameKind.ACK}))
    try:
        async with asyncio.timeout(limits.handshake_timeout_s):
            request = await stream.receive(decoder)
    except (WireError, TimeoutError) as error:
        _log.warning("KV connection dropped before a request: %s", error)
        return
    if not isinstance(request, ReadRequest):
        _log.warning("KV connection dropped: acknowledgement without a request")
        return
    await serve_inline(request, stream, decoder, provider, limits)


async def serve_inline(
    request: ReadRequest, stream: ByteStream, decoder: FrameDecoder, provider: KvProvider, limits: OwnerLimits
) -> None:
    """Serve one read whose request has arrived, payloads between the frames."""
    payloads = _InlinePayloads(stream, stall_timeout_s=limits.stall_timeout_s)
    session = OwnerSession(stream=stream, decoder=decoder, limits=limits, payloads=payloads)
    await session.answer(request, provider)


class _InlinePayloads:
    """`PayloadSender` that puts payloads between the frames: what `send` was given has left when it returns."""

    def __init__(self, stream: ByteStream, *, stall_timeout_s: float) -> None:
        self._stream = stream
        self._stall_timeout_s = stall_timeout_s

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        for offset in range(0, layer_bytes, MAX_DATA_BYTES):
            length = min(MAX_DATA_BYTES, layer_bytes - offset)
            yield DataFrame(layer=layer, offset_bytes=offset, length_bytes=length)

    async def run(self) -> NoReturn:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a future that nobody sets")

    async def send(self, frame: DataFrame, run: ByteRun, check: Callable[[], None]) -> None:
        await asyncio.sleep(0)  # a fast reader takes everything at once: let others run between pieces
        header = encode_data_header(frame, run.checksum(frame.offset_bytes, frame.length_bytes))
        buffers = [memoryview(header), *run.slice(frame.offset_bytes, frame.length_bytes)]
        await self._stream.send(buffers, check=check, stall_timeout_s=self._stall_timeout_s)

    async def settle(self, layer: int) -> None:
        pass

    async def abort(self) -> None:
        pass
