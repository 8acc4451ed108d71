"""The owner's side of one read, whatever carries the payloads: lend the pages, send layer by layer, hear the ack."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from common.errors import Reason, WireError
from common.racing import CutShort
from common.transport.base import KvProvider, KvReadLease
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.frames import DataFrame, FrameDecoder
from common.transport.messages import Accept, Ack, ControlMessage, ReadRequest, Refusal, Trailer

_log = logging.getLogger(__name__)
IDLE_TIMEOUT_S = 120.0
"""How long a reader may keep a connection open between two reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """How long an owner bears with a reader: seconds to ask, seconds without progress, seconds for a whole read.

    A reader's own timeout bounds its read too; `read_timeout_s` is for readers that claim an absurd one.
    """

    handshake_timeout_s: float
    stall_timeout_s: float
    read_timeout_s: float


async def first_frame(
    stream: ByteStream, decoder: FrameDecoder, limits: OwnerLimits
) -> ControlMessage | DataFrame | None:
    """What a fresh connection begins with; None, and a word in the log, when it is nothing that `decoder` takes."""
    try:
        async with asyncio.timeout(limits.handshake_timeout_s):
            return await stream.receive(decoder)
    except TimeoutError:
        _log.warning("KV connection dropped: nothing was asked for within %g s", limits.handshake_timeout_s)
    except WireError as error:
        # Who leaves without having asked lacks nothing: a reader that goes on by another path does so, or one whose
        # call was cancelled.
        level = logging.DEBUG if error.reason is Reason.PEER_LOST else logging.WARNING
        _log.log(level, "KV connection dropped before a request: %s", error)
    return None


class Run(Protocol):
    """The bytes of one layer, wherever they lie."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        ...


R_contra = TypeVar("R_contra", bound=Run, contravariant=True)
R = TypeVar("R", bound=Run)


async def computed_run(lease: KvReadLease, layer: int) -> ByteRun:
    """The layer's views once it is computed: how payloads are had that this process itself sends."""
    await lease.wait_layer(layer)
    return ByteRun(lease.views(layer))


class PayloadSender(Protocol[R_contra]):
    """How the bytes of a layer leave."""

    @property
    def inline(self) -> bool:
        """Whether payloads and frames share the stream, so that what is said may wait for the next payload."""
        ...

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        """The layer cut into what one `send` takes, in order."""
        ...

    async def drive(self, sending: Coroutine[Any, Any, None]) -> None:
        """Run `sending`, which calls the methods below, with what must run beside it; raises what either raises."""
        ...

    async def send(self, frame: DataFrame, run: R_contra, check: Callable[[], None], *, more: bool) -> None:
        """Begin to send one piece of the layer `run`, calling `check` right before; `run` is read until `settle`.

        `more`: the next piece, or the trailer, follows at once.
        """
        ...

    async def settle(self, layer: int, check: Callable[[], None]) -> None:
        """Return when every piece up to and including that layer has left; `check` as for `send`."""
        ...

    async def end(self, layer: int, trailer: Trailer, check: Callable[[], None]) -> None:
        """Send the trailer after `layer`, the last one; returns when all of it has left."""
        ...

    async def abort(self) -> None:
        """Stop: when this returns nothing reads any payload. Nothing can be sent on this connection afterwards."""
        ...


class OwnerSession(Generic[R]):
    """The reads of one connection, one after the other. `open_layer` waits for a layer and says where its bytes are;
    `ack_timeout_s` is what a reader may take from the trailer to its acknowledgement (None: the stall timeout)."""

    def __init__(
        self,
        *,
        stream: ByteStream,
        decoder: FrameDecoder,
        limits: OwnerLimits,
        payloads: PayloadSender[R],
        open_layer: Callable[[KvReadLease, int], Awaitable[R]],
        ack_timeout_s: float | None = None,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._limits = limits
        self._payloads = payloads
        self._open_layer = open_layer
        self._ack_timeout_s = limits.stall_timeout_s if ack_timeout_s is None else ack_timeout_s

    async def serve(self, provider: KvProvider, *, first: ReadRequest | None = None) -> None:
        """Serve `first`, if it has come already, and what follows until the reader leaves or a read fails."""
        request = first or await self._next_request(self._limits.handshake_timeout_s)
        while request is not None and await self._answer(request, provider):
            request = await self._next_request(IDLE_TIMEOUT_S)

    async def _next_request(self, patience_s: float) -> ReadRequest | None:
        """The reader's next request; None when it has left, says nothing for `patience_s`, or says something else."""
        try:
            async with asyncio.timeout(patience_s):
                request = await self._stream.receive(self._decoder)
        except (WireError, TimeoutError) as error:
            _log.debug("KV connection ends: %s", error)
            return None
        if isinstance(request, ReadRequest):
            return request
        _log.warning("KV connection dropped: %s instead of a request", type(request).__name__)
        return None

    async def _answer(self, request: ReadRequest, provider: KvProvider) -> bool:
        """Serve `request`; True when the reader has acknowledged all of it and may ask again.

        Faults of the peer end here; a bug is logged, and answered INTERNAL. The lease, once open, is closed exactly
        once, also when cancelled.
        """
        try:
            if request.read.early:
                await self._until_begun(request, provider)
            lease = provider.open_read(request.read)
        except WireError as error:
            await self._refuse(request, error)
            return False
        except Exception:
            # The provider is the owner's code and may fail in any way: one reader's call must not end the accept loop's
            # task group, and with it every other read.
            _log.exception("KV provider failed to open %s", request.read.attempt)
            await self._refuse(request, WireError(Reason.INTERNAL, "internal error"))
            return False
        failure = await self._lend(lease, request)
        if failure is not None:
            _log.info("KV read of %s ended: %s", request.read.attempt, failure)
            await self._refuse(request, failure)
        return failure is None

    async def _until_begun(self, request: ReadRequest, provider: KvProvider) -> None:
        """Wait for the prefill that the reader is early for; raises `WireError` when reader or patience is gone."""
        try:
            async with asyncio.timeout(min(request.timeout_s, self._limits.read_timeout_s)):
                with self._stream.watch_input() as leaving:
                    async with CutShort(leaving):
                        await provider.until_begun(request.read)
        except TimeoutError:
            raise WireError(Reason.KV_NOT_FOUND, f"no prefill of {request.read.attempt} began in time") from None

    async def _lend(self, lease: KvReadLease, request: ReadRequest) -> WireError | None:
        """Send everything and close the lease; returns why that failed."""
        delivered = False
        try:
            async with (
                asyncio.timeout(min(request.timeout_s, self._limits.read_timeout_s)),
                CutShort(lease.revoked),
            ):
                # Before the trailer a reader has nothing to say: it can only have left.
                with self._stream.watch_input() as leaving:
                    async with CutShort(leaving):
                        await self._payloads.drive(self._send_layers(lease))
                await self._until_acknowledged()
            delivered = True
            return None
        except WireError as error:
            return error
        except TimeoutError:
            return WireError(Reason.PEER_LOST, "the KV read took too long")
        except Exception:
            # As in `_answer`: lease and payloads may fail in any way, the other reads go on.
            _log.exception("KV read of %s failed", request.read.attempt)
            return WireError(Reason.INTERNAL, "internal error")
        finally:
            try:
                if not delivered:
                    await self._payloads.abort()
            finally:
                lease.close(delivered=delivered)

    async def _refuse(self, request: ReadRequest, error: WireError) -> None:
        """Tell the reader why, unless a frame is half sent or the peer is gone: then closing must do."""
        if self._stream.half_sent or error.reason is Reason.PEER_LOST:
            return
        try:
            refusal = Refusal(error=error, number=request.number)
            await self._stream.say(refusal, stall_timeout_s=self._limits.stall_timeout_s)
        except WireError:
            _log.info("KV reader left before it heard: %s", error)

    async def _send_layers(self, lease: KvReadLease) -> None:
        if lease.layers < 1:
            raise WireError(Reason.LAYOUT_MISMATCH, "the KV read has no layers")
        layer_bytes = 0
        for layer in range(lease.layers):
            await self._payloads.settle(layer - lease.window_layers, lease.check)
            run = await self._open_layer(lease, layer)
            more = lease.complete
            if layer == 0:
                layer_bytes = run.size_bytes
                lease.check()
                await self._stream.say(
                    Accept(layers=lease.layers, layer_bytes=layer_bytes),
                    stall_timeout_s=self._limits.stall_timeout_s,
                    more=more and self._payloads.inline,
                )
            assert run.size_bytes == layer_bytes, "every layer has the same size"
            for frame in self._payloads.pieces(layer, layer_bytes):
                await self._payloads.send(frame, run, lease.check, more=more)
        data = await lease.trailer()
        trailer = Trailer(data=data, computed_ago_s=lease.computed_ago_s())
        # The reader may acknowledge the trailer before this side has heard that it has left.
        self._stream.answer_may_come()
        await self._payloads.end(lease.layers - 1, trailer, lease.check)

    async def _until_acknowledged(self) -> None:
        async with asyncio.timeout(self._ack_timeout_s):
            answer = await self._stream.receive(self._decoder)
        if not isinstance(answer, Ack):
            raise WireError(Reason.PEER_LOST, "the KV reader asked twice on one connection")
