"""The owner's side of a UCX connection: frames over TCP, payloads over UCX, one read after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from common.errors import WireError
from common.transport.base import KvProvider
from common.transport.byte_stream import ByteStream
from common.transport.checksum import payload_checksum
from common.transport.frames import DataFrame, FrameDecoder, FrameKind, encode_control
from common.transport.messages import Delivered, MalformedFrame, ReadRequest, UcxPeer
from common.transport.owner_session import OwnerLimits, OwnerSession
from common.transport.ucx_pieces import SEND_WINDOW, TagSequence, pieces
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime, UcxTransfer

_log = logging.getLogger(__name__)
IDLE_TIMEOUT_S = 120.0
"""How long a reader may keep a connection open between two reads."""


async def serve_reads(stream: ByteStream, provider: KvProvider, limits: OwnerLimits, runtime: UcxRuntime) -> None:
    """Serve a fresh connection until the reader leaves or a read fails; the caller closes `stream` afterwards."""
    decoder = FrameDecoder(frozenset({FrameKind.PEER, FrameKind.REQUEST, FrameKind.ACK}))
    try:
        async with asyncio.timeout(limits.handshake_timeout_s):
            endpoint, tags = await _introduce(stream, decoder, limits, runtime)
    except (WireError, TimeoutError) as error:
        _log.warning("KV connection dropped before a request: %s", error)
        return
    payloads = _UcxPayloads(stream, endpoint, tags, stall_timeout_s=limits.stall_timeout_s)
    session = OwnerSession(stream=stream, decoder=decoder, limits=limits, payloads=payloads)
    patience_s = limits.handshake_timeout_s
    try:
        while (request := await _next_request(stream, decoder, patience_s)) is not None:
            if not await session.answer(request, provider):
                return
            patience_s = IDLE_TIMEOUT_S
    finally:
        await payloads.abort()


async def _introduce(
    stream: ByteStream, decoder: FrameDecoder, limits: OwnerLimits, runtime: UcxRuntime
) -> tuple[UcxEndpoint, TagSequence]:
    peer = await stream.receive(decoder)
    if not isinstance(peer, UcxPeer):
        raise MalformedFrame("a UCX connection begins with an introduction")
    runtime.check_peer(peer)
    endpoint = await runtime.connect(peer.worker_address)
    try:
        me = encode_control(runtime.introduction(peer.first_tag))
        await stream.send([memoryview(me)], stall_timeout_s=limits.stall_timeout_s)
    except BaseException:
        await endpoint.abort([])
        raise
    return endpoint, TagSequence(peer.first_tag)


async def _next_request(stream: ByteStream, decoder: FrameDecoder, patience_s: float) -> ReadRequest | None:
    """The reader's next request; None when it has left or says something else."""
    try:
        async with asyncio.timeout(patience_s):
            request = await stream.receive(decoder)
    except (WireError, TimeoutError) as error:
        _log.debug("KV connection ends: %s", error)
        return None
    if isinstance(request, ReadRequest):
        return request
    _log.warning("KV connection dropped: %s instead of a request", type(request).__name__)
    return None


@dataclass(frozen=True, slots=True)
class _InFlight:
    frame: DataFrame
    payload_sum: int
    transfer: UcxTransfer


class _UcxPayloads:
    """`PayloadSender` that keeps up to `SEND_WINDOW` pieces on their way and says when each has arrived."""

    def __init__(self, stream: ByteStream, endpoint: UcxEndpoint, tags: TagSequence, *, stall_timeout_s: float) -> None:
        self._stream = stream
        self._endpoint = endpoint
        self._tags = tags
        self._stall_timeout_s = stall_timeout_s
        self._in_flight: deque[_InFlight] = deque()
        self._changed = asyncio.Event()
        self._aborted = False

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        return pieces(layer, layer_bytes)

    async def run(self) -> NoReturn:
        """Say of each piece, in order, that it is in the reader's memory."""
        while True:
            while not self._in_flight:
                await self._wait_for_change()
            oldest = self._in_flight[0]
            await oldest.transfer.wait()
            frame = oldest.frame
            delivered = Delivered(
                layer=frame.layer,
                offset_bytes=frame.offset_bytes,
                length_bytes=frame.length_bytes,
                payload_sum=oldest.payload_sum,
            )
            await self._stream.send([memoryview(encode_control(delivered))], stall_timeout_s=self._stall_timeout_s)
            self._in_flight.popleft()
            self._changed.set()

    async def send(self, frame: DataFrame, payload: memoryview, check: Callable[[], None]) -> None:
        while len(self._in_flight) >= SEND_WINDOW:
            await self._wait_for_change()
        check()
        transfer = self._endpoint.send(payload, next(self._tags))
        # Summed while it is on its way: the memory holds still until `settle`.
        self._in_flight.append(_InFlight(frame, payload_checksum(payload), transfer))
        self._changed.set()
        await asyncio.sleep(0)

    async def settle(self, layer: int) -> None:
        while self._in_flight and self._in_flight[0].frame.layer <= layer:
            await self._wait_for_change()

    async def abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            await self._endpoint.abort([piece.transfer for piece in self._in_flight])

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
