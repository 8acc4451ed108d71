"""The owner's side of a UCX connection: frames over TCP, payloads over UCX, one read after the other."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from common.core.ids import WorkerLife
from common.errors import Reason, WireError
from common.racing import race
from common.transport.base import KvProvider
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.checksum import payload_checksum
from common.transport.direct_owner import serve_lent
from common.transport.frames import DataFrame, FrameDecoder, FrameKind
from common.transport.memory_proof import HeldProof
from common.transport.messages import Delivered, MalformedFrame, ReadRequest, Refusal, TakesMemory, Trailer, UcxPeer
from common.transport.owner_session import OwnerLimits, OwnerSession, computed_run, first_frame
from common.transport.tcp_owner import serve_inline
from common.transport.ucx_pieces import SEND_WINDOW_BYTES, SEND_WINDOW_PIECES, TagSequence, Window, pieces
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime, UcxTransfer
from common.transport.ucx_seal import Side, is_sealed, sealed

_log = logging.getLogger(__name__)

NO_NETWORK = (
    "UCX has no network between these users or PID namespaces of one machine, which may not share memory: "
    "let it use tcp (UCX_TLS), or set --kv-transport auto or tcp"
)
"""What a reader is told."""


async def serve_reads(stream: ByteStream, provider: KvProvider, limits: OwnerLimits, runtime: UcxRuntime) -> None:
    """Serve a fresh connection until the reader leaves or a read fails; the caller closes `stream` afterwards.

    A reader without UCX begins with its request, and is served over the stream alone.
    """
    decoder = FrameDecoder(frozenset({FrameKind.PEER, FrameKind.REQUEST, FrameKind.ACK}))
    hello = await first_frame(stream, decoder, limits)
    if isinstance(hello, ReadRequest):
        await serve_inline(hello, stream, decoder, provider, limits)
    elif isinstance(hello, UcxPeer):
        await serve_peer(hello, stream, provider, limits, runtime)
    elif hello is not None:
        _log.warning("KV connection dropped: acknowledgement without a request")


async def serve_peer(
    peer: UcxPeer, stream: ByteStream, provider: KvProvider, limits: OwnerLimits, runtime: UcxRuntime
) -> None:
    """Serve a connection whose reader has introduced its UCX worker: it takes payloads itself, or is sent them."""
    decoder = FrameDecoder(frozenset({FrameKind.TAKES_MEMORY, FrameKind.REQUEST, FrameKind.ACK}))
    life = provider.life
    # It has to lie there until the reader has looked: it does while this connection is served.
    proof = HeldProof(peer.nonce, life) if provider.in_host_memory and peer.nonce else None
    try:
        async with asyncio.timeout(limits.handshake_timeout_s):
            endpoint = await _introduce(peer, stream, limits, runtime, life, proof)
    except TimeoutError:
        _log.warning("KV connection dropped: UCX did not connect within %g s", limits.handshake_timeout_s)
        return
    except WireError as error:
        _log.warning("KV connection dropped before a request: %s", error)
        return
    tags = TagSequence(peer.first_tag)
    payloads = _UcxPayloads(stream, endpoint, tags, stall_timeout_s=limits.stall_timeout_s)
    session = OwnerSession(stream=stream, decoder=decoder, limits=limits, payloads=payloads, open_layer=computed_run)
    try:
        first = await first_frame(stream, decoder, limits)
        if isinstance(first, TakesMemory) and proof is not None:
            await serve_lent(stream, decoder, provider, limits)
        elif isinstance(first, ReadRequest):
            await session.serve(provider, first=first)
    finally:
        await payloads.abort()


async def _introduce(
    peer: UcxPeer,
    stream: ByteStream,
    limits: OwnerLimits,
    runtime: UcxRuntime,
    life: WorkerLife,
    proof: HeldProof | None,
) -> UcxEndpoint:
    runtime.check_peer(peer)
    if not is_sealed(peer, life, Side.READER):
        # A reader that was sent to an earlier life asks the scheduler again.
        error = WireError(Reason.STALE_INCARNATION, "a UCX introduction to another life than this worker's")
        await stream.say(Refusal(error=error, number=0), stall_timeout_s=limits.stall_timeout_s)
        raise error
    if not stream.silent:
        # It says nothing before it is answered. An endpoint without its counterpart would shift all later pairs.
        raise WireError(Reason.PEER_LOST, "the KV reader has left")
    endpoint = await _connected(peer, stream, limits, runtime)
    try:
        answer = sealed(runtime.answer_to(peer, proof), life, Side.OWNER)
        await stream.say(answer, stall_timeout_s=limits.stall_timeout_s)
    except BaseException:
        await endpoint.abort([])
        raise
    return endpoint


async def _connected(peer: UcxPeer, stream: ByteStream, limits: OwnerLimits, runtime: UcxRuntime) -> UcxEndpoint:
    """An endpoint to the reader; by networks alone where both may not share memory. The reader is told if there is
    none."""
    if not runtime.is_barred_from(peer):
        return await runtime.connect(peer.worker_address)
    if not peer.networks_address:
        raise MalformedFrame("no UCX worker address by networks")
    try:
        return await runtime.connect(peer.networks_address)
    except WireError:
        error = WireError(Reason.LAYOUT_MISMATCH, NO_NETWORK)
        await stream.say(Refusal(error=error, number=0), stall_timeout_s=limits.stall_timeout_s)
        raise error from None


@dataclass(frozen=True, slots=True)
class _InFlight:
    frame: DataFrame
    payload_sum: int
    transfer: UcxTransfer


class _UcxPayloads:
    """`PayloadSender` that keeps a window of pieces on their way and says which have arrived."""

    inline = False

    def __init__(self, stream: ByteStream, endpoint: UcxEndpoint, tags: TagSequence, *, stall_timeout_s: float) -> None:
        self._stream = stream
        self._endpoint = endpoint
        self._tags = tags
        self._stall_timeout_s = stall_timeout_s
        self._in_flight: deque[_InFlight] = deque()
        self._window = Window(max_bytes=SEND_WINDOW_BYTES, max_pieces=SEND_WINDOW_PIECES)
        self._delivered = 0
        self._changed = asyncio.Condition()
        self._aborted = False

    async def drive(self, sending: Coroutine[Any, Any, None]) -> None:
        await race(sending, self._say_delivered())

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        if layer == 0:
            self._delivered = 0
        return pieces(layer, layer_bytes)

    async def _say_delivered(self) -> NoReturn:
        """Say of the pieces, in order, that they are in the reader's memory; of several at once where they are."""
        while True:
            await self._until(lambda: bool(self._in_flight))
            await self._in_flight[0].transfer.wait()
            arrived = [piece for piece in itertools.takewhile(lambda piece: piece.transfer.done, self._in_flight)]
            for piece in arrived:
                await piece.transfer.wait()
            said = Delivered(first=self._delivered, payload_sums=tuple(piece.payload_sum for piece in arrived))
            await self._stream.say(said, stall_timeout_s=self._stall_timeout_s)
            await self._retire(len(arrived))

    async def send(self, frame: DataFrame, run: ByteRun, check: Callable[[], None], *, more: bool) -> None:
        await self._until(lambda: self._window.has_room(frame.length_bytes))
        payload = memoryview(run.joined(frame.offset_bytes, frame.length_bytes))
        check()
        transfer = self._endpoint.send(payload, next(self._tags))
        self._window.add(frame.length_bytes)
        # Summed while it is on its way: the memory holds still until `settle`.
        self._in_flight.append(_InFlight(frame, payload_checksum(payload), transfer))
        async with self._changed:
            self._changed.notify_all()
        await asyncio.sleep(0)

    async def settle(self, layer: int, check: Callable[[], None]) -> None:
        await self._until(lambda: not self._in_flight or self._in_flight[0].frame.layer > layer)

    async def end(self, layer: int, trailer: Trailer, check: Callable[[], None]) -> None:
        await self.settle(layer, check)
        await self._stream.say(trailer, check=check, stall_timeout_s=self._stall_timeout_s)

    async def abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            await self._endpoint.abort([piece.transfer for piece in self._in_flight])

    async def _retire(self, count: int) -> None:
        for _ in range(count):
            self._window.remove(self._in_flight.popleft().frame.length_bytes)
        self._delivered += count
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        if not holds():
            async with self._changed:
                await self._changed.wait_for(holds)
