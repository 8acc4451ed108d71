"""The owner's side of a direct connection: say where the bytes lie and what their sums are; the reader takes them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np

from common.errors import Reason, WireError
from common.transport.base import KvProvider, KvReadLease
from common.transport.byte_stream import ByteStream
from common.transport.frames import DataFrame, FrameDecoder, encode_control
from common.transport.memory_run import MAX_SPANS, Gathered, MemoryRun, address_of
from common.transport.messages import MAX_LENT_BYTES, NONCE_BYTES, DirectHello, DirectOffer, Lent, Refusal, Trailer
from common.transport.owner_session import OwnerLimits, OwnerSession
from common.transport.process_memory import Machine

_log = logging.getLogger(__name__)

FIRST_LENT_BYTES = MAX_LENT_BYTES // 2
"""Most bytes that the first `Lent` of a read tells of."""


class OwnMemory:
    """What an owner tells of its process, so that a reader can see whether it reads the right one."""

    def __init__(self, machine: Machine | None) -> None:
        """`machine`: where this process runs, as far as is known."""
        self._machine = machine
        self._nonce = np.frombuffer(secrets.token_bytes(NONCE_BYTES), dtype=np.uint8)

    def offer_to(self, reader: Machine) -> DirectOffer | None:
        """How to read this process from `reader`; None where another kernel is in between."""
        if self._machine is None or reader.boot_id != self._machine.boot_id:
            return None
        nonce = self._nonce.data
        return DirectOffer(
            machine=self._machine, pid=os.getpid(), nonce_address=address_of(nonce), nonce=nonce.tobytes()
        )


async def serve_direct(
    hello: DirectHello,
    stream: ByteStream,
    decoder: FrameDecoder,
    provider: KvProvider,
    limits: OwnerLimits,
    own: OwnMemory,
) -> None:
    """Serve a connection whose reader would read this process' memory, or tell it that it cannot."""
    offer = own.offer_to(hello.machine) if provider.in_host_memory else None
    answer = offer or Refusal(error=WireError(Reason.LAYOUT_MISMATCH, "this owner's memory is not within reach"))
    try:
        await stream.say(answer, stall_timeout_s=limits.stall_timeout_s)
    except WireError as error:
        _log.debug("KV connection ends: %s", error)
        return
    if offer is not None:
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
