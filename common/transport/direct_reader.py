"""The reader's side of a direct connection: take bytes out of the owner's memory, believe them if the sum agrees."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass

from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.base import KvSink
from common.transport.byte_stream import ByteStream
from common.transport.fetches import Received
from common.transport.frames import DataFrame, FrameDecoder, FrameKind
from common.transport.memory_proof import Challenge
from common.transport.memory_run import Gathered, MemoryRun, Spans
from common.transport.messages import (
    MAX_LENT_BYTES,
    Ack,
    ControlMessage,
    DirectHello,
    DirectOffer,
    Lent,
    MalformedFrame,
    ReadRequest,
    Refusal,
)
from common.transport.process_memory import Machine, ReadMemory
from common.transport.sizes import agreed_first_memory
from common.transport.tcp_reader import accepted, connect, expect_trailer

SPAN_TURN_BYTES = 2 << 10
"""What a span that is copied counts for at least, towards the end of a turn of the event loop."""

REFUSAL_GRACE_S = 0.5
"""How long a reader that has found wrong bytes waits to hear why: an owner that takes pages back says so at once, and
the fetch ends within a second either way."""


class NoDirectPath(WireError):
    """This owner's memory cannot be read from here, now or ever; nothing was written to any sink.

    `one_machine`: it is under this kernel, which keeps both apart, and with them whoever would share memory.
    """

    def __init__(self, problem: str, *, one_machine: bool = False) -> None:
        super().__init__(Reason.LAYOUT_MISMATCH, f"no direct path to the KV owner: {problem}")
        self.one_machine = one_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What this process can read: others on its `machine` (None: it does not know where it is), by `read`."""

    machine: Machine | None
    read: ReadMemory


class DirectConnection:
    """`ReaderConnection` that takes payloads out of the owner's memory; frames go over TCP."""

    def __init__(self, stream: ByteStream, decoder: FrameDecoder, read: Callable[[Spans, Spans], None]) -> None:
        """`read` copies the second spans, of the owner, to the first, as `ReadMemory` does."""
        self._stream = stream
        self._decoder = decoder
        self._read = read
        self._turn_bytes = 0
        self.delivering = False

    @classmethod
    async def open(cls, handle: KvHandle, reach: Reach, timeout_s: float) -> DirectConnection:
        """Connect to the owner that `handle` names, and see that its memory, and nobody else's, is within reach.

        Raises `NoDirectPath` when it is not, `WireError` PEER_LOST when that takes longer than `timeout_s`.
        """
        if reach.machine is None:
            raise NoDirectPath("this machine does not say which it is")
        challenge = Challenge(handle.owner)
        try:
            async with asyncio.timeout(timeout_s):
                stream = await connect(handle.address, timeout_s)
                try:
                    return await cls._introduce(stream, challenge, reach.machine, reach.read)
                except BaseException:
                    stream.close()
                    raise
        except TimeoutError:
            raise WireError(Reason.PEER_LOST, f"the KV peer did not answer within {timeout_s} s") from None

    @classmethod
    async def _introduce(
        cls, stream: ByteStream, challenge: Challenge, machine: Machine, read_process: ReadMemory
    ) -> DirectConnection:
        await stream.say(DirectHello(machine=machine, nonce=challenge.nonce), stall_timeout_s=None)
        decoder = FrameDecoder(
            frozenset({FrameKind.DIRECT_OFFER, FrameKind.ACCEPT, FrameKind.LENT, FrameKind.TRAILER, FrameKind.REFUSAL})
        )
        offer = await stream.receive(decoder)
        if isinstance(offer, Refusal):
            raise NoDirectPath(offer.error.message)
        if not isinstance(offer, DirectOffer):
            raise MalformedFrame("a direct connection begins with an offer")
        if offer.machine != machine:
            raise NoDirectPath("it has another PID namespace", one_machine=True)
        read = functools.partial(read_process, offer.pid)
        expect_proof(challenge, offer.proof_address, read)
        return cls(stream, decoder, read)

    @property
    def reusable(self) -> bool:
        """See `ReaderConnection.reusable`."""
        return self._stream.silent

    async def read(self, sink: KvSink, request: ReadRequest) -> Received:
        """See `ReaderConnection.read`."""
        self.delivering = False
        accept = await accepted(self._stream, self._decoder, request)
        first = agreed_first_memory(sink, layers=accept.layers, layer_bytes=accept.layer_bytes)
        landing = _Landing(sink, first)
        while not landing.done:
            lent = _expect_lent(await self._stream.receive(self._decoder), landing)
            filled = await self._take(lent, landing)
            self.delivering = True
            for layer in filled:
                await sink.complete(layer)
        trailer = expect_trailer(await self._stream.receive(self._decoder))
        await self._stream.say(Ack(), stall_timeout_s=None)
        return first.size_bytes * sink.layers, trailer

    async def abort(self) -> None:
        """See `ReaderConnection.abort`. Bytes are copied within one turn of the loop each, so none is on its way."""
        self._stream.close()

    async def _take(self, lent: Lent, landing: _Landing) -> range:
        """Copy what is lent to where it belongs; returns the layers that are full now. Raises `WireError` unless it is
        what the owner has summed."""
        target, filled = landing.take(lent.spans.size_bytes)
        try:
            self._read(target.spans, lent.spans)
        except OSError as error:
            raise WireError(Reason.PEER_LOST, "the KV owner's memory cannot be read any more") from error
        if target.checksum() != lent.payload_sum:
            raise await self._explanation()
        self._turn_bytes += max(target.size_bytes, SPAN_TURN_BYTES * len(lent.spans))
        if self._turn_bytes >= MAX_LENT_BYTES:
            # An owner that is quick, or lends crumbs, never makes anyone else wait.
            self._turn_bytes = 0
            await asyncio.sleep(0)
        return filled

    async def _explanation(self) -> WireError:
        """Why bytes are not what they were: the owner took the pages back, and says so, or else they are damaged."""
        try:
            async with asyncio.timeout(REFUSAL_GRACE_S):
                while not isinstance(frame := await self._stream.receive(self._decoder), Refusal):
                    pass  # What else was said before that is of no use any more.
                return frame.error
        except TimeoutError:
            return WireError(Reason.KV_CHECKSUM, "K/V in the owner's memory does not match its checksum")
        except WireError as error:
            return error


class _Landing:
    """Where the next bytes of a read belong: the layers of its sink in order, without gaps. `first` is layer 0."""

    def __init__(self, sink: KvSink, first: MemoryRun) -> None:
        self._sink = sink
        self._run = first
        self._layer = 0
        self._layer_bytes = first.size_bytes
        self.taken_bytes = 0

    @property
    def left_bytes(self) -> int:
        """What is still to come."""
        return self._layer_bytes * self._sink.layers - self.taken_bytes

    @property
    def done(self) -> bool:
        """Whether that is nothing."""
        return not self.left_bytes

    def take(self, size_bytes: int) -> tuple[Gathered, range]:
        """The next `size_bytes`, at most what is left, and the layers that are full with them."""
        target = Gathered()
        full_before = self.taken_bytes // self._layer_bytes
        while target.size_bytes < size_bytes:
            layer, offset_bytes = divmod(self.taken_bytes, self._layer_bytes)
            if layer != self._layer:
                self._layer, self._run = layer, self._sink.memory(layer)
                assert self._run.size_bytes == self._layer_bytes, "every layer has the same size"
            length_bytes = min(size_bytes - target.size_bytes, self._layer_bytes - offset_bytes)
            # All of it, however many pieces this side has: only the system call counts them.
            target.add(self._run, self._run.spans.cut(offset_bytes, length_bytes, len(self._run.spans)))
            self.taken_bytes += length_bytes
        return target, range(full_before, self.taken_bytes // self._layer_bytes)


def expect_proof(challenge: Challenge, address: int, read: Callable[[Spans, Spans], None]) -> None:
    """Raise `NoDirectPath` unless `read` finds the proof of the owner that is challenged: then it reads its memory."""
    try:
        met = challenge.met_at(address, read)
    except OSError as error:
        raise NoDirectPath(f"reading its memory fails: {error.strerror}", one_machine=True) from None
    if not met:
        raise NoDirectPath("what can be read from here is not its memory", one_machine=True)


def _expect_lent(frame: ControlMessage | DataFrame, landing: _Landing) -> Lent:
    """The frame, if it lends what comes next; raises the owner's refusal when that comes instead."""
    if isinstance(frame, Refusal):
        raise frame.error
    if not isinstance(frame, Lent) or frame.offset_bytes != landing.taken_bytes:
        raise MalformedFrame(f"something else where byte {landing.taken_bytes} belongs")
    if frame.spans.size_bytes > landing.left_bytes:
        raise MalformedFrame(f"{frame.spans.size_bytes} bytes do not fit")
    return frame
