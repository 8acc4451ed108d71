"""The reader's side of a UCX connection: post receives ahead, believe a piece when its `Delivered` and sum agree."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NoReturn

from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.racing import race
from common.transport.base import KvSink
from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.checksum import payload_checksum
from common.transport.fetches import Received
from common.transport.frames import DataFrame, FrameDecoder, FrameKind
from common.transport.messages import (
    Ack,
    ControlMessage,
    Delivered,
    MalformedFrame,
    ReadRequest,
    Refusal,
    Trailer,
)
from common.transport.tcp_reader import ask, expect_trailer
from common.transport.ucx_introduction import Acquaintance, opened
from common.transport.ucx_pieces import RECEIVE_WINDOW_BYTES, RECEIVE_WINDOW_PIECES, TagSequence, Window, pieces
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime, UcxTransfer

_Frames = asyncio.Queue[ControlMessage | DataFrame]

_FRAMES_BESIDE = 2
"""Frames of a read that tell of no piece: trailer and refusal."""


class UcxConnection:
    """`ReaderConnection` over a TCP stream and a pair of UCX endpoints."""

    def __init__(
        self,
        stream: ByteStream,
        decoder: FrameDecoder,
        runtime: UcxRuntime,
        endpoint: UcxEndpoint,
        tags: TagSequence,
    ) -> None:
        self._stream = stream
        self._runtime = runtime
        self._decoder = decoder
        self._endpoint = endpoint
        self._tags = tags
        self._receives: set[UcxTransfer] = set()
        self.delivering = False

    @classmethod
    async def open(cls, handle: KvHandle, runtime: UcxRuntime, timeout_s: float) -> UcxConnection:
        """Connect and introduce each other; raises `WireError` PEER_LOST when that takes longer than `timeout_s`."""

        async def begin(known: Acquaintance) -> UcxConnection:
            kinds = frozenset({FrameKind.ACCEPT, FrameKind.DELIVERED, FrameKind.TRAILER, FrameKind.REFUSAL})
            tags = TagSequence(known.peer.first_tag)
            return cls(known.stream, FrameDecoder(kinds), runtime, known.endpoint, tags)

        return await opened(handle, runtime, timeout_s, begin)

    @property
    def reusable(self) -> bool:
        """See `ReaderConnection.reusable`."""
        return self._stream.silent and self._endpoint.alive

    async def read(self, sink: KvSink, request: ReadRequest) -> Received:
        """See `ReaderConnection.read`."""
        self.delivering = False
        try:
            return await self._read(sink, request)
        except BaseException:
            self._runtime.note_strays()
            raise

    async def _read(self, sink: KvSink, request: ReadRequest) -> Received:
        first = await ask(self._stream, self._decoder, request, sink)
        frames: _Frames = asyncio.Queue()
        posts = _Posts(sink, first)
        trailer = await race(self._collect(sink, posts, frames), self._hear(frames, posts.count))
        await self._stream.say(Ack(), stall_timeout_s=None)
        return first.size_bytes * sink.layers, trailer

    async def abort(self) -> None:
        """See `ReaderConnection.abort`."""
        self._stream.close()
        await self._endpoint.abort(self._receives)

    async def _hear(self, frames: _Frames, pieces: int) -> NoReturn:
        """Take frames off the stream as they come: its end must be noticed whatever the payloads do.

        Raises `MalformedFrame` when they are more than a read of so many `pieces` has: they wait in memory.
        """
        left, left_beside = pieces, _FRAMES_BESIDE
        while True:
            frame = await self._stream.receive(self._decoder)
            if isinstance(frame, Delivered):
                # One that tells of nothing is as wrong, but counts.
                left -= max(1, len(frame.payload_sums))
            else:
                left_beside -= 1
            if min(left, left_beside) < 0:
                raise MalformedFrame(f"more than a read of {pieces} pieces has")
            frames.put_nowait(frame)
            if isinstance(frame, Refusal):
                # The end of the stream follows; what was said before it counts.
                await asyncio.get_running_loop().create_future()

    async def _collect(self, sink: KvSink, posts: _Posts, frames: _Frames) -> Trailer:
        """Fill the sink; returns the trailer."""
        window = Window(max_bytes=RECEIVE_WINDOW_BYTES, max_pieces=RECEIVE_WINDOW_PIECES)
        posted: deque[tuple[_Landing, UcxTransfer]] = deque()
        sums: deque[int] = deque()
        for number in range(posts.count):
            while (landing := posts.next(window)) is not None:
                transfer = self._endpoint.receive(landing.memory, next(self._tags))
                self._receives.add(transfer)
                posted.append((landing, transfer))
            if not sums:
                sums.extend(_delivered(await frames.get(), number))
            landing, transfer = posted.popleft()
            await landing.arrival(transfer, sums.popleft())
            self.delivering = True
            self._receives.discard(transfer)
            window.remove(landing.frame.length_bytes)
            if landing.ends_layer:
                await sink.complete(landing.frame.layer)
                posts.layer_completed()
        return expect_trailer(await frames.get())


class _Landing:
    """Where one piece is received: the sink's own memory where that is in one piece, else a buffer in between."""

    __slots__ = ("_run", "_staged", "ends_layer", "frame", "memory")

    def __init__(self, frame: DataFrame, run: ByteRun) -> None:
        self.frame = frame
        self.ends_layer = frame.offset_bytes + frame.length_bytes == run.size_bytes
        self._run = run
        window = run.slice(frame.offset_bytes, frame.length_bytes, 2)
        self._staged = len(window) > 1
        self.memory = memoryview(bytearray(frame.length_bytes)) if self._staged else window[0]

    async def arrival(self, transfer: UcxTransfer, payload_sum: int) -> None:
        """Until the piece is here; if it is right, it is where it belongs, else raises `WireError` KV_CHECKSUM."""
        await transfer.wait()
        if payload_checksum(self.memory) != payload_sum:
            raise WireError(Reason.KV_CHECKSUM, "KV piece does not match its checksum")
        if self._staged:
            self._run.write(self.frame.offset_bytes, self.memory)


class _Posts:
    """The pieces of a whole read in order, no further than window and sink allow."""

    def __init__(self, sink: KvSink, first: ByteRun) -> None:
        self._sink = sink
        self._run = first
        self._layer = 0
        self._completed_layers = 0
        self._frames = deque(pieces(0, first.size_bytes))
        self.count = sink.layers * len(self._frames)

    def layer_completed(self) -> None:
        """One more layer may be begun."""
        self._completed_layers += 1

    def next(self, window: Window) -> _Landing | None:
        """The next piece to be ready for, added to `window`; None when there is no room for it, and at the end."""
        end = min(self._completed_layers + self._sink.window_layers, self._sink.layers)
        if not self._frames and self._layer + 1 < end:
            self._enter(self._layer + 1)
        if not self._frames or not window.has_room(self._frames[0].length_bytes):
            return None
        frame = self._frames.popleft()
        window.add(frame.length_bytes)
        return _Landing(frame, self._run)

    def _enter(self, layer: int) -> None:
        run = ByteRun(self._sink.views(layer))
        assert run.size_bytes == self._run.size_bytes, "every layer has the same size"
        self._layer, self._run, self._frames = layer, run, deque(pieces(layer, run.size_bytes))


def _delivered(frame: ControlMessage | DataFrame, expected: int) -> tuple[int, ...]:
    """Checksums of the pieces from number `expected` on; raises the owner's refusal when that comes instead."""
    if isinstance(frame, Refusal):
        raise frame.error
    if not isinstance(frame, Delivered) or frame.first != expected or not frame.payload_sums:
        raise MalformedFrame(f"something else where piece {expected} belongs")
    return frame.payload_sums
