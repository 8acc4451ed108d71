"""The wire that the storms cut: transparent while whole, silent while cut, and then nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.chaos.wire import Wire

PATIENCE_S = 20.0


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1024):
        writer.write(piece.upper())
        await writer.drain()
    writer.write(b"END")
    writer.close()


@asynccontextmanager
async def wired() -> AsyncIterator[tuple[Wire, str, int]]:
    """A wire to an echo server, and the near end's host and port."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wire = Wire("127.0.0.9", lambda: f"127.0.0.1:{port}")
    running = asyncio.create_task(wire.run())
    host, _, near = wire.address.rpartition(":")
    try:
        yield wire, host, int(near)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        server.close()


async def heard(reader: asyncio.StreamReader, count: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(count), PATIENCE_S)


async def silent(reader: asyncio.StreamReader) -> bool:
    """Nothing comes, neither bytes nor an end."""
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
        return False
    return True


async def test_a_whole_wire_carries_both_ways_and_tells_the_end() -> None:
    async with wired() as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello")
        assert await heard(reader, 5) == b"HELLO"
        writer.write_eof()
        assert await heard(reader, 3) == b"END"
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()


async def test_a_cut_wire_is_silent_and_loses_nothing() -> None:
    async with wired() as (wire, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"one")
        assert await heard(reader, 3) == b"ONE"
        wire.cut()
        writer.write(b"two")
        assert await silent(reader)
        writer.write_eof()
        assert await silent(reader), "not even the end is told"
        wire.mend()
        assert await heard(reader, 6) == b"TWOEND"
        writer.close()


async def test_a_connection_made_while_it_is_cut_is_neither_refused_nor_answered() -> None:
    async with wired() as (wire, host, port):
        wire.cut()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"late")
        assert await silent(reader)
        wire.mend()
        assert await heard(reader, 4) == b"LATE"
        writer.close()


async def test_a_far_side_that_is_not_there_ends_the_connection() -> None:
    wire = Wire("127.0.0.9", lambda: "127.0.0.1:1")
    running = asyncio.create_task(wire.run())
    host, _, port = wire.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
