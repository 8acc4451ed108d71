"""The owner's side of one TCP read: hear the request, lend the pages, send them layer by layer, wait for the ack."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from common.errors import Reason, WireError
from common.transport.base import KvProvider, KvReadLease
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.frames import (
    MAX_DATA_BYTES,
    DataFrame,
    FrameDecoder,
    FrameKind,
    encode_control,
    encode_data_header,
)
from common.transport.messages import Accept, Ack, ReadRequest, Refusal
from common.transport.racing import race

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """How long an owner bears with a reader: seconds to ask, seconds without progress, seconds for a whole read.

    A reader's own timeout bounds its read too; `read_timeout_s` is for readers that claim an absurd one.
    """

    handshake_timeout_s: float
    stall_timeout_s: float
    read_timeout_s: float


async def serve_read(stream: ByteStream, provider: KvProvider, limits: OwnerLimits) -> None:
    """Serve the one read of a fresh connection. Faults of the peer end here; a bug is logged, and answered INTERNAL.

    The caller closes `stream` afterwards. The lease, once open, is closed exactly once, also when cancelled.
    """
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
    session = _Session(stream, decoder, limits)
    try:
        lease = provider.open_read(request.read)
    except WireError as error:
        await session.refuse(error)
        return
    except Exception:
        _log.exception("KV provider failed to open %s", request.read.attempt)
        await session.refuse(WireError(Reason.INTERNAL, "internal error"))
        return
    await session.serve(lease, request)


class _Session:
    """One accepted read."""

    def __init__(self, stream: ByteStream, decoder: FrameDecoder, limits: OwnerLimits) -> None:
        self._stream = stream
        self._decoder = decoder
        self._limits = limits

    async def serve(self, lease: KvReadLease, request: ReadRequest) -> None:
        """Send everything, wait for the ack, close the lease; a failure is told to the reader where possible."""
        delivered = False
        failure: WireError | None = None
        try:
            async with asyncio.timeout(min(request.timeout_s, self._limits.read_timeout_s)):
                await race(self._send_layers(lease), self._until_revoked(lease), self._until_peer_speaks())
                await race(self._until_acknowledged(), self._until_revoked(lease))
            delivered = True
        except WireError as error:
            failure = error
        except TimeoutError:
            failure = WireError(Reason.PEER_LOST, "the KV read took too long")
        except Exception:
            _log.exception("KV read of %s failed", request.read.attempt)
            failure = WireError(Reason.INTERNAL, "internal error")
        finally:
            lease.close(delivered=delivered)
        if failure is not None:
            _log.info("KV read of %s ended: %s", request.read.attempt, failure)
            await self.refuse(failure)

    async def refuse(self, error: WireError) -> None:
        """Tell the reader why, unless a frame is half sent or the peer is gone: then closing must do."""
        if self._stream.half_sent or error.reason is Reason.PEER_LOST:
            return
        try:
            await self._send([memoryview(encode_control(Refusal(error=error)))])
        except WireError:
            _log.info("KV reader left before it heard: %s", error)

    async def _send_layers(self, lease: KvReadLease) -> None:
        if lease.layers < 1:
            raise WireError(Reason.LAYOUT_MISMATCH, "the KV read has no layers")
        layer_bytes = 0
        for layer in range(lease.layers):
            await lease.wait_layer(layer)
            run = ByteRun(lease.views(layer))
            if layer == 0:
                layer_bytes = run.size_bytes
                accept = encode_control(Accept(layers=lease.layers, layer_bytes=layer_bytes))
                await self._send([memoryview(accept)], check=lease.check)
            assert run.size_bytes == layer_bytes, "every layer has the same size"
            await self._send_layer(lease, layer, run)

    async def _send_layer(self, lease: KvReadLease, layer: int, run: ByteRun) -> None:
        for offset in range(0, run.size_bytes, MAX_DATA_BYTES):
            if layer or offset:
                await asyncio.sleep(0)
            length = min(MAX_DATA_BYTES, run.size_bytes - offset)
            frame = DataFrame(layer=layer, offset_bytes=offset, length_bytes=length)
            header = encode_data_header(frame, run.checksum(offset, length))
            await self._send([memoryview(header), *run.slice(offset, length)], check=lease.check)

    async def _send(self, buffers: list[memoryview], check: Callable[[], None] = lambda: None) -> None:
        await self._stream.send(buffers, check=check, stall_timeout_s=self._limits.stall_timeout_s)

    async def _until_peer_speaks(self) -> NoReturn:
        """While bytes are being sent a reader has nothing to say: it can only have left."""
        await self._stream.wait_readable()
        raise WireError(Reason.PEER_LOST, "the KV reader went away")

    async def _until_revoked(self, lease: KvReadLease) -> NoReturn:
        raise await lease.revoked()

    async def _until_acknowledged(self) -> None:
        async with asyncio.timeout(self._limits.stall_timeout_s):
            answer = await self._stream.receive(self._decoder)
        if not isinstance(answer, Ack):
            raise WireError(Reason.PEER_LOST, "the KV reader asked twice on one connection")
