"""Connections that a reader keeps for its next read: used, bounded, and never the reason why a read fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from common.core.ids import WorkerLife
from common.errors import Reason, WireError
from common.transport.base import KvProvider
from common.transport.byte_stream import ByteStream
from common.transport.direct import DirectTransport
from common.transport.frames import HEADER_BYTES
from common.transport.kept_connections import MAX_KEPT_PER_OWNER
from common.transport.socket_transport import SocketTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport
from tests.transport.doubles import OWNER, PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.wire_peer import accept_frame, data_frame, read_frame, refusal_frame, trailer_frame

LAYER = 64
DATA = random_layers(2, LAYER)
ANSWER = accept_frame(2, LAYER) + data_frame(0, 0, DATA[0]) + data_frame(1, 0, DATA[1]) + trailer_frame()


class Doors:
    """Counts the connections that an owner serves, and has served."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0
        self.changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        self.opened += 1
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            async with self.changed:
                self.changed.notify_all()

    async def until_open(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: self.open == count)


class WatchedTcp(TcpTransport):
    doors: Doors

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        async with self.doors.passed():
            await super()._serve_connection(stream, provider)


class WatchedUcx(UcxTransport):
    doors: Doors

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        async with self.doors.passed():
            await super()._serve_connection(stream, provider)


class WatchedDirect(DirectTransport):
    doors: Doors

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        async with self.doors.passed():
            await super()._serve_connection(stream, provider)


Watched = WatchedTcp | WatchedUcx | WatchedDirect
KINDS: dict[str, tuple[Callable[[], Watched], Callable[[], SocketTransport]]] = {
    "direct": (WatchedDirect, DirectTransport),
    "tcp": (WatchedTcp, TcpTransport),
    "ucx": (WatchedUcx, UcxTransport),
}


class Lender:
    """An owner, started anew as often as wished, and what became of its doors."""

    def __init__(self, kind: str) -> None:
        self._make = KINDS[kind][0]
        self.kind = kind
        self.provider = MemoryProvider()
        self.doors = Doors()
        self.address = ""

    async def start(self) -> None:
        self._transport = self._make()
        self._transport.doors = self.doors
        host, _, port = (self.address or "127.0.0.1:0").rpartition(":")
        self.address = await self._transport.listen(host, self.provider, port=int(port))

    async def stop(self) -> None:
        await self._transport.aclose()

    async def lend_to(self, reader: SocketTransport, number: int) -> None:
        lease, sink = self.provider.lend(DATA, number), MemorySink(2, LAYER)
        handle = handle_for(self.address, number, transport=self.kind)
        await reader.fetch(handle=handle, sink=sink, timeout_s=PATIENCE_S)
        assert sink.content == DATA
        assert await lease.until_closed() == [True]


@pytest.fixture(params=sorted(KINDS))
async def lender(request: pytest.FixtureRequest) -> AsyncIterator[Lender]:
    made = Lender(request.param)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def reader(lender: Lender) -> AsyncIterator[SocketTransport]:
    made = KINDS[lender.kind][1]()
    yield made
    await made.aclose()


async def test_one_connection_does_many_reads(lender: Lender, reader: SocketTransport) -> None:
    for number in range(5):
        await lender.lend_to(reader, number)
    assert (lender.doors.opened, lender.doors.open) == (1, 1)


async def test_what_is_kept_is_bounded(lender: Lender, reader: SocketTransport) -> None:
    many = MAX_KEPT_PER_OWNER + 3
    await asyncio.gather(*(lender.lend_to(reader, number) for number in range(many)))
    await lender.doors.until_open(min(lender.doors.opened, MAX_KEPT_PER_OWNER))
    await reader.aclose()
    await lender.doors.until_open(0)


async def test_the_end_of_a_life_closes_its_connections_alone(lender: Lender, reader: SocketTransport) -> None:
    await lender.lend_to(reader, 0)
    await reader.close_peer(WorkerLife(OWNER.worker_id, OWNER.incarnation + 1))
    await lender.lend_to(reader, 1)
    assert (lender.doors.opened, lender.doors.open) == (1, 1)
    await reader.close_peer(OWNER)
    await lender.doors.until_open(0)


async def test_an_owner_started_anew_is_read_as_if_nothing_had_been_kept(
    lender: Lender, reader: SocketTransport
) -> None:
    await lender.lend_to(reader, 0)
    await lender.stop()
    await lender.start()
    await lender.lend_to(reader, 1)
    assert (lender.doors.opened, lender.doors.open) == (2, 1)


async def test_a_read_that_failed_leaves_no_connection(lender: Lender, reader: SocketTransport) -> None:
    with pytest.raises(WireError) as caught:
        await reader.fetch(
            handle=handle_for(lender.address, transport=lender.kind), sink=MemorySink(2, LAYER), timeout_s=PATIENCE_S
        )
    assert caught.value.reason is Reason.KV_NOT_FOUND
    await lender.doors.until_open(0)
    await lender.lend_to(reader, 1)


Turn = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Does something about a request."""


async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER)


async def leave(_: bytes, writer: asyncio.StreamWriter) -> None:
    """Goes away with the request in hand: what an owner that is started anew looks like to a kept connection."""
    writer.close()


async def accept_and_leave(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(accept_frame(2, LAYER))
    await writer.drain()
    writer.close()


async def begin_and_leave(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(accept_frame(2, LAYER) + data_frame(0, 0, DATA[0]))
    await writer.drain()
    writer.close()


async def refuse(request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(refusal_frame(Reason.KV_LEASE_EXPIRED, "over", request=request))


async def refuse_something_else(_: bytes, writer: asyncio.StreamWriter) -> None:
    """As an owner does whose answer to the last request comes late."""
    writer.write(refusal_frame(Reason.KV_LEASE_EXPIRED, "over"))


@contextlib.asynccontextmanager
async def scripted_connections(*scripts: list[Turn]) -> AsyncIterator[tuple[str, list[int]]]:
    """An owner whose connection i does to request j what `scripts[i][j]` says; the list counts requests by connection.

    Acknowledgements are read over: they are as long as they should be, or the next request would not be understood.
    """
    requests: list[int] = []
    doors = Doors()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = len(requests)
        requests.append(0)
        async with doors.passed():
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                await play(index, reader, writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def play(index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for turn in scripts[index]:
            request = await read_frame(reader)
            requests[index] += 1
            await turn(request, writer)
            if turn is answer:
                await reader.readexactly(HEADER_BYTES)
        await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
        await doors.until_open(0)


async def fetch_twice(address: str) -> None:
    transport = TcpTransport()
    try:
        for _ in range(2):
            sink = MemorySink(2, LAYER)
            await transport.fetch(handle=handle_for(address), sink=sink, timeout_s=PATIENCE_S)
            assert sink.content == DATA
    finally:
        await transport.aclose()


@pytest.mark.parametrize("last", [leave, accept_and_leave, refuse_something_else])
async def test_a_kept_connection_that_dies_before_any_payload_is_tried_once_more_on_a_fresh_one(last: Turn) -> None:
    async with scripted_connections([answer, last], [answer]) as (address, requests):
        await fetch_twice(address)
        assert requests == [2, 1]


async def test_a_fresh_connection_that_dies_too_is_a_lost_peer() -> None:
    async with scripted_connections([answer, leave], [leave]) as (address, requests):
        with pytest.raises(WireError) as caught:
            await fetch_twice(address)
        assert caught.value.reason is Reason.PEER_LOST and requests == [2, 1]


async def test_a_kept_connection_that_dies_amid_the_payload_is_a_lost_peer() -> None:
    async with scripted_connections([answer, begin_and_leave]) as (address, requests):
        with pytest.raises(WireError) as caught:
            await fetch_twice(address)
        assert caught.value.reason is Reason.PEER_LOST and requests == [2]


async def test_a_refusal_over_a_kept_connection_is_final() -> None:
    async with scripted_connections([answer, refuse]) as (address, requests):
        with pytest.raises(WireError) as caught:
            await fetch_twice(address)
        assert caught.value.reason is Reason.KV_LEASE_EXPIRED and requests == [2]
