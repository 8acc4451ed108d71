"""Peers that go away, or fall silent, before a read has begun: over every transport between processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from common.errors import Reason, WireError
from common.transport.frames import HEADER_BYTES, encode_control
from common.transport.messages import Delivered, UcxPeer
from common.transport.socket_transport import SocketTransport
from common.transport.ucx import UcxTransport
from common.transport.ucx_runtime import UcxRuntime
from common.transport.ucx_seal import Side, sealed
from tests.transport.doubles import OWNER, PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.kinds import KINDS
from tests.transport.wire_peer import accept_frame, raw_reader, read_frame, scripted_owner, trailer_frame

LAYER = 3000
DATA = random_layers(2, LAYER)
SILENCE_S = 0.3
FOREIGN = encode_control(UcxPeer(ucx_version="0.1", worker_address=b"elsewhere", first_tag=1))
WITH_INTRODUCTION = [kind for kind in sorted(KINDS) if kind != "tcp"]


class ShortWire:
    """A way to an owner that passes so many frames of one side; then it is cut, or passes nothing any more."""

    def __init__(self, target: str, *, of_owner: bool, frames: int, cut: bool) -> None:
        self._target = target
        self._of_owner = of_owner
        self._frames = frames
        self._cut = cut

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, for as long as both ends are there."""
        from_owner, to_owner = await asyncio.open_connection(*self._target.split(":"))
        limited = [(from_owner, writer), (reader, to_owner)]
        if not self._of_owner:
            limited.reverse()
        ways = [asyncio.create_task(way) for way in (self._carry_some(*limited[0]), _carry(*limited[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, to_owner):
                end.transport.abort()

    async def _carry_some(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        for _ in range(self._frames):
            target.write(await read_frame(source))
        if self._cut:
            await target.drain()
            return
        while await source.read(1 << 16):
            pass


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)


@contextlib.asynccontextmanager
async def wired(target: str, *, of_owner: bool, frames: int, cut: bool) -> AsyncIterator[str]:
    """Address of a `ShortWire` to `target`."""
    wire = ShortWire(target, of_owner=of_owner, frames=frames, cut=cut)
    async with await asyncio.start_server(wire.serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def ends(kind: str) -> AsyncIterator[tuple[SocketTransport, MemoryProvider, str, SocketTransport]]:
    """An owner with little patience for readers, its provider and address, and a reader of the same kind."""
    owner, reader, provider = KINDS[kind](), KINDS[kind](), MemoryProvider()
    try:
        yield owner, provider, await owner.listen("127.0.0.1", provider), reader
    finally:
        await reader.aclose()
        await owner.aclose()


async def assert_lost_and_then_well(
    reader: SocketTransport, provider: MemoryProvider, address: str, wire: str, timeout_s: float
) -> None:
    """A fetch by way of `wire` is lost at both ends; the next one, straight from the owner, is as good as any."""
    lease = provider.lend(DATA)
    with pytest.raises(WireError) as caught:
        await reader.fetch(handle=handle_for(wire), sink=MemorySink(2, LAYER), timeout_s=timeout_s)
    assert caught.value.reason is Reason.PEER_LOST
    if lease.opened.is_set():
        assert await lease.until_closed() == [False]
    lease, sink = provider.lend(DATA, 1), MemorySink(2, LAYER)
    await reader.fetch(handle=handle_for(address, 1), sink=sink, timeout_s=PATIENCE_S)
    assert sink.content == DATA and await lease.until_closed() == [True]


@pytest.mark.parametrize("frames", [0, 1])
@pytest.mark.parametrize("cut", [True, False], ids=["leaves", "falls silent"])
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_an_owner_that_is_gone_before_its_first_or_second_word(kind: str, cut: bool, frames: int) -> None:
    """Introductions and acceptance; over tcp the first word is the acceptance."""
    async with (
        ends(kind) as (_, provider, address, reader),
        wired(address, of_owner=True, frames=frames, cut=cut) as wire,
    ):
        timeout_s = PATIENCE_S if cut else SILENCE_S
        await assert_lost_and_then_well(reader, provider, address, wire, timeout_s)


@pytest.mark.parametrize(
    ("kind", "frames"), [*((kind, 0) for kind in sorted(KINDS)), *((kind, 1) for kind in WITH_INTRODUCTION)]
)
@pytest.mark.parametrize("cut", [True, False], ids=["leaves", "falls silent"])
async def test_a_reader_that_is_gone_before_it_has_asked(kind: str, frames: int, cut: bool) -> None:
    async with (
        ends(kind) as (_, provider, address, reader),
        wired(address, of_owner=False, frames=frames, cut=cut) as wire,
    ):
        await assert_lost_and_then_well(reader, provider, address, wire, PATIENCE_S if cut else SILENCE_S)
        assert len(provider.requests) == 1, "the owner has not heard of the first"


async def test_a_reader_that_introduces_itself_and_never_asks_is_dropped() -> None:
    owner, reader, provider = UcxTransport(handshake_timeout_s=SILENCE_S), UcxTransport(), MemoryProvider()
    try:
        address = await owner.listen("127.0.0.1", provider)
        async with wired(address, of_owner=False, frames=1, cut=False) as wire:
            # The reader would wait for long: it is the owner that ends this.
            await assert_lost_and_then_well(reader, provider, address, wire, PATIENCE_S)
    finally:
        await reader.aclose()
        await owner.aclose()


async def test_another_version_of_ucx_is_refused_at_both_ends() -> None:
    async def introduce(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(FOREIGN)
        await reader.read()

    async with ends("ucx") as (_, provider, address, reader):
        async with scripted_owner(introduce) as foreign:
            with pytest.raises(WireError, match=r"runs UCX 0\.1") as caught:
                await reader.fetch(handle=handle_for(foreign), sink=MemorySink(2, LAYER), timeout_s=PATIENCE_S)
        assert caught.value.reason is Reason.LAYOUT_MISMATCH
        async with raw_reader(address) as (stream, writer):
            writer.write(FOREIGN)
            assert await asyncio.wait_for(stream.read(), PATIENCE_S) == b""
        assert not provider.requests


def told(*payload_sums: int) -> bytes:
    return encode_control(Delivered(first=0, payload_sums=payload_sums))


@pytest.mark.parametrize(
    "words",
    [told(1, 2, 3), told(1) + told(2) + told(3), told(1) + told() * 2, told(1) + trailer_frame() * 3],
    ids=["in one word", "word by word", "of nothing", "beside the pieces"],
)
async def test_an_owner_that_says_more_than_a_read_has_is_not_listened_to(words: bytes) -> None:
    """The read has 2 pieces, of which none comes: what is said meanwhile would wait in memory."""
    runtime, reader = UcxRuntime(), UcxTransport()

    async def script(first: bytes, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = runtime.answer_to(UcxPeer.decode(first[HEADER_BYTES:]), None)
        writer.write(encode_control(sealed(answer, OWNER, Side.OWNER)))
        await read_frame(stream)
        writer.write(accept_frame(2, LAYER) + words)
        await stream.read()

    try:
        async with scripted_owner(script) as address:
            with pytest.raises(WireError, match="more than a read of 2 pieces has") as caught:
                await reader.fetch(handle=handle_for(address), sink=MemorySink(2, LAYER), timeout_s=PATIENCE_S)
    finally:
        await reader.aclose()
        await runtime.close()
    assert caught.value.reason is Reason.KV_CHECKSUM
