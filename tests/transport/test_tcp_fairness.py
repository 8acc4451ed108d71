"""However fast the peer, one turn of the event loop moves a bounded number of bytes."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterable

from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.frames import GOOD_DATA_BYTES, MAX_DATA_BYTES, FrameDecoder, FrameKind, SinkCursor
from common.transport.owner_session import OwnerLimits
from common.transport.tcp_owner import serve_reads
from tests.transport.doubles import MemoryProvider, MemorySink, random_layers
from tests.transport.wire_peer import data_frame, request_frame

LAYERS, LAYER_BYTES = 4, 3 * MAX_DATA_BYTES


class Turns:
    """Counts the loop's turns, and the bytes that one socket moved in each."""

    def __init__(self) -> None:
        self.now = 0
        self.moved_bytes: Counter[int] = Counter()

    async def run(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


class EagerSocket(socket.socket):
    """A socket whose peer is infinitely fast: it takes everything, and `incoming` is always there."""

    turns: Turns
    incoming: memoryview

    def sendmsg(self, buffers: Iterable[memoryview], *_: object) -> int:  # type: ignore[override]
        count = sum(map(len, buffers))
        self.turns.moved_bytes[self.turns.now] += count
        return count

    def recvmsg_into(self, buffers: Iterable[memoryview], *_: object) -> tuple[int, list[object], int, object]:  # type: ignore[override]
        total = 0
        for buffer in buffers:
            count = min(len(buffer), len(self.incoming))
            buffer[:count], self.incoming = self.incoming[:count], self.incoming[count:]
            total += count
        self.turns.moved_bytes[self.turns.now] += total
        return total, [], 0, None


def eager_pair(turns: Turns, incoming: bytes) -> tuple[EagerSocket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        plain = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    eager = EagerSocket(fileno=accepted.detach())
    eager.turns, eager.incoming = turns, memoryview(incoming)
    return eager, plain


async def test_receiving_yields_after_every_frames_worth() -> None:
    turns = Turns()
    data = random_layers(LAYERS, LAYER_BYTES)
    wire = b"".join(
        data_frame(layer, offset, data[layer][offset : offset + MAX_DATA_BYTES])
        for layer in range(LAYERS)
        for offset in range(0, LAYER_BYTES, MAX_DATA_BYTES)
    )
    eager, plain = eager_pair(turns, wire)
    sink = MemorySink(LAYERS, LAYER_BYTES, piece_bytes=65_536, gap_bytes=64)
    cursor = SinkCursor(sink, ByteRun(sink.views(0)))
    decoder = FrameDecoder(frozenset({FrameKind.DATA}))
    decoder.expect_data(cursor)
    ticking = asyncio.create_task(turns.run())
    with eager, plain:
        stream = ByteStream(eager)
        while not cursor.done:
            await stream.receive(decoder)
    ticking.cancel()
    assert sink.content == data
    assert max(turns.moved_bytes.values()) <= 2 * MAX_DATA_BYTES


async def test_sending_yields_after_a_few_frames() -> None:
    turns = Turns()
    eager, plain = eager_pair(turns, request_frame())
    provider = MemoryProvider()
    lease = provider.lend(random_layers(LAYERS, LAYER_BYTES), piece_bytes=65_536, gap_bytes=64)
    limits = OwnerLimits(handshake_timeout_s=5.0, stall_timeout_s=5.0, read_timeout_s=5.0)
    ticking = asyncio.create_task(turns.run())
    with eager, plain:
        await serve_reads(ByteStream(eager), provider, limits)
    ticking.cancel()
    assert lease.closes == [False], "an ack of no bytes is the end of the stream"
    assert sum(turns.moved_bytes.values()) > LAYERS * LAYER_BYTES
    assert max(turns.moved_bytes.values()) < MAX_DATA_BYTES + GOOD_DATA_BYTES


async def test_receiving_crumbs_yields_too() -> None:
    """Frames of one byte cost their reader as much as longer ones: few of them are taken in one turn."""
    turns, frames = Turns(), 2000
    eager, plain = eager_pair(turns, b"".join(data_frame(0, offset, b"\x01") for offset in range(frames)))
    sink = MemorySink(1, frames)
    cursor = SinkCursor(sink, ByteRun(sink.views(0)))
    decoder = FrameDecoder(frozenset({FrameKind.DATA}))
    decoder.expect_data(cursor)
    ticking = asyncio.create_task(turns.run())
    taken: Counter[int] = Counter()
    with eager, plain:
        stream = ByteStream(eager)
        while not cursor.done:
            await stream.receive(decoder)
            taken[turns.now] += 1
    ticking.cancel()
    assert sink.content == [b"\x01" * frames]
    assert max(taken.values()) <= 64
