"""The owner's side of a TCP connection: one read after the other, payloads between the frames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from common.transport.base import KvProvider, KvReadLease
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.checksum import views_checksum
from common.transport.frames import (
    GOOD_DATA_BYTES,
    DataFrame,
    FrameDecoder,
    FrameKind,
    encode_control,
    encode_data_header,
)
from common.transport.messages import ReadRequest, Trailer
from common.transport.owner_session import OwnerLimits, OwnerSession, computed_run, first_frame

_log = logging.getLogger(__name__)


async def serve_reads(stream: ByteStream, provider: KvProvider, limits: OwnerLimits) -> None:
    """Serve a fresh connection until the reader leaves or a read fails; the caller closes `stream` afterwards."""
    decoder = FrameDecoder(frozenset({FrameKind.REQUEST, FrameKind.ACK}))
    request = await first_frame(stream, decoder, limits)
    if isinstance(request, ReadRequest):
        await serve_inline(request, stream, decoder, provider, limits)
    elif request is not None:
        _log.warning("KV connection dropped: acknowledgement without a request")


async def serve_inline(
    request: ReadRequest, stream: ByteStream, decoder: FrameDecoder, provider: KvProvider, limits: OwnerLimits
) -> None:
    """Serve a connection whose first request has arrived, payloads between the frames."""
    payloads = _InlinePayloads(stream, stall_timeout_s=limits.stall_timeout_s)
    session = OwnerSession(stream=stream, decoder=decoder, limits=limits, payloads=payloads, open_layer=_computed_runs)
    await session.serve(provider, first=request)


async def _computed_runs(lease: KvReadLease, layer: int) -> ByteRun:
    """`computed_run` for a carrier that takes memory in runs."""
    if layer == 0:
        lease.in_runs()
    return await computed_run(lease, layer)


class _InlinePayloads:
    """`PayloadSender` that puts payloads between the frames. Small ones gather until it is worth a system call."""

    inline = True

    def __init__(self, stream: ByteStream, *, stall_timeout_s: float) -> None:
        self._stream = stream
        self._stall_timeout_s = stall_timeout_s

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        for offset in range(0, layer_bytes, GOOD_DATA_BYTES):
            length = min(GOOD_DATA_BYTES, layer_bytes - offset)
            yield DataFrame(layer=layer, offset_bytes=offset, length_bytes=length)

    async def drive(self, sending: Coroutine[Any, Any, None]) -> None:
        await sending

    async def send(self, frame: DataFrame, run: ByteRun, check: Callable[[], None], *, more: bool) -> None:
        payload = run.slice(frame.offset_bytes, frame.length_bytes)
        buffers = [memoryview(encode_data_header(frame, views_checksum(payload))), *payload]
        await self._stream.send(buffers, check=check, stall_timeout_s=self._stall_timeout_s, more=more)

    async def settle(self, layer: int, check: Callable[[], None]) -> None:
        if layer >= 0:
            await self._send([], check, more=False)

    async def end(self, layer: int, trailer: Trailer, check: Callable[[], None]) -> None:
        await self._send([memoryview(encode_control(trailer))], check, more=False)

    async def abort(self) -> None:
        self._stream.drop_unsent()

    async def _send(self, buffers: list[memoryview], check: Callable[[], None], *, more: bool) -> None:
        await self._stream.send(buffers, check=check, stall_timeout_s=self._stall_timeout_s, more=more)
