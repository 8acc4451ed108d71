"""The owner's side of a direct connection: say where the bytes lie and what their sums are; the reader takes them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from common.errors import Reason, WireError
from common.transport.base import KvProvider, KvReadLease
from common.transport.byte_stream import ByteStream
from common.transport.frames import DataFrame, FrameDecoder, encode_control
from common.transport.memory_proof import HeldProof
from common.transport.memory_run import MAX_SPANS, Gathered, MemoryRun
from common.transport.messages import MAX_LENT_BYTES, DirectHello, DirectOffer, Lent, Refusal, Trailer
from common.transport.owner_session import OwnerLimits, OwnerSession
from common.transport.process_memory import Machine

_log = logging.getLogger(__name__)

FIRST_LENT_BYTES = MAX_LENT_BYTES // 2
"""Most bytes that the first `Lent` of a read tells of."""


async def serve_direct(
    hello: DirectHello,
    stream: ByteStream,
    decoder: FrameDecoder,
    provider: KvProvider,
    limits: OwnerLimits,
    machine: Machine | None,
) -> None:
    """Serve a connection whose reader would read this process' memory, or tell it that it cannot.

    `machine`: where this process runs, as far as is known. From another machine its memory is out of reach.
    """
    # It has to lie there until the reader has looked: it does while this connection is served.
    proof = HeldProof(hello.nonce, provider.life)
    within_reach = provider.in_host_memory and machine is not None and machine.boot_id == hello.machine.boot_id
    answer: DirectOffer | Refusal
    if machine is not None and within_reach:
        answer = DirectOffer(machine=machine, pid=os.getpid(), proof_address=proof.address)
    else:
        out_of_reach = WireError(Reason.LAYOUT_MISMATCH, "this owner's memory is not within reach")
        answer = Refusal(error=out_of_reach, number=0)
    try:
        await stream.say(answer, stall_timeout_s=limits.stall_timeout_s)
    except WireError as error:
        _log.debug("KV connection ends: %s", error)
        return
    if isinstance(answer, DirectOffer):
        await serve_lent(stream, decoder, provider, limits)


async def serve_lent(
    stream: ByteStream,
    decoder: FrameDecoder,
    provider: KvProvider,
    limits: OwnerLimits,
) -> None:
    """Serve a reader that can read this process' memory."""
    payloads = _LentPayloads(stream, stall_timeout_s=limits.stall_timeout_s)
    session = OwnerSession(
        stream=stream,
        decoder=decoder,
        limits=limits,
        payloads=payloads,
        open_layer=_computed_memory,
        # All is said long before a slow reader has copied it, so its silence says nothing: its own timeout must do.
        ack_timeout_s=limits.read_timeout_s,
    )
    await session.serve(provider)


async def _computed_memory(lease: KvReadLease, layer: int) -> MemoryRun:
    return await lease.memory(layer)


class _LentPayloads:
    """`PayloadSender` that sends no payload: its `Lent`s say where it is, of as many layers at once as are computed."""

    inline = True

    def __init__(self, stream: ByteStream, *, stall_timeout_s: float) -> None:
        self._stream = stream
        self._stall_timeout_s = stall_timeout_s
        self._begin(0, 0)

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        if layer == 0:
            # A reader has nothing to do until it hears of the first ones.
            self._begin(FIRST_LENT_BYTES, 0)
        yield DataFrame(layer=layer, offset_bytes=0, length_bytes=layer_bytes)

    async def drive(self, sending: Coroutine[Any, Any, None]) -> None:
        await sending

    async def send(self, frame: DataFrame, run: MemoryRun, check: Callable[[], None], *, more: bool) -> None:
        taken_bytes = 0
        while taken_bytes < frame.length_bytes:
            check()
            room_bytes = min(self._most_bytes - self._untold.size_bytes, frame.length_bytes - taken_bytes)
            part = run.spans.cut(taken_bytes, room_bytes, MAX_SPANS - self._untold.count)
            self._untold.add(run, part)
            taken_bytes += part.size_bytes
            if self._untold.size_bytes == self._most_bytes or self._untold.count == MAX_SPANS:
                await self._tell(check, more=False)
        if not more and self._untold.count:
            await self._tell(check, more=False)

    async def settle(self, layer: int, check: Callable[[], None]) -> None:
        """Nothing is sent from the pages, so there is nothing to wait for."""

    async def end(self, layer: int, trailer: Trailer, check: Callable[[], None]) -> None:
        if self._untold.count:
            await self._tell(check, more=True)
        await self._send(encode_control(trailer), check, more=False)

    async def abort(self) -> None:
        self._stream.drop_unsent()

    def _begin(self, most_bytes: int, offset_bytes: int) -> None:
        self._untold, self._most_bytes, self._offset_bytes = Gathered(), most_bytes, offset_bytes

    async def _tell(self, check: Callable[[], None], *, more: bool) -> None:
        """Lend what is untold; `more` as for `ByteStream.send`."""
        # The lease holds before and after, so nobody else writes meanwhile: the sum is that of the right bytes.
        check()
        lent = Lent(offset_bytes=self._offset_bytes, payload_sum=self._untold.checksum(), spans=self._untold.spans)
        self._begin(MAX_LENT_BYTES, self._offset_bytes + lent.spans.size_bytes)
        await self._send(encode_control(lent), check, more=more)
        await asyncio.sleep(0)

    async def _send(self, data: bytes, check: Callable[[], None], *, more: bool) -> None:
        await self._stream.send([memoryview(data)], check=check, stall_timeout_s=self._stall_timeout_s, more=more)
