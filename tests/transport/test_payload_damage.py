"""Payloads that are not what the owner has summed: over every transport between processes no such layer is complete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from common.errors import Reason, WireError
from common.transport.frames import HEADER_BYTES, FrameKind, encode_control
from common.transport.messages import Delivered, Lent
from tests.transport.doubles import PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.kinds import KINDS
from tests.transport.wire_peer import read_frame

LAYERS, LAYER_BYTES = 2, 64 << 10


def damaged(frame: bytes) -> bytes:
    """The owner's frame with one bit of its payload, or of the sum of a payload that goes another way, turned over."""
    kind, content = FrameKind(frame[5]), frame[HEADER_BYTES:]
    if kind is FrameKind.DATA:
        return frame[:-1] + bytes([frame[-1] ^ 1])
    if kind is FrameKind.DELIVERED:
        said = Delivered.decode(content)
        sums = (said.payload_sums[0] ^ 1, *said.payload_sums[1:])
        return encode_control(Delivered(first=said.first, payload_sums=sums))
    if kind is FrameKind.LENT:
        lent = Lent.decode(content)
        return encode_control(Lent(offset_bytes=lent.offset_bytes, payload_sum=lent.payload_sum ^ 1, spans=lent.spans))
    return frame


@contextlib.asynccontextmanager
async def damaging(target: str) -> AsyncIterator[str]:
    """Address of a way to the owner at `target` that does no other harm than `damaged`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_owner, to_owner = await asyncio.open_connection(*target.split(":"))

        async def there() -> None:
            while data := await reader.read(1 << 16):
                to_owner.write(data)

        async def back() -> None:
            while True:
                writer.write(damaged(await read_frame(from_owner)))

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, to_owner):
            end.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("cut", [{}, {"piece_bytes": 20_000, "gap_bytes": 16}], ids=["one run", "pieces"])
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_damaged_layer_is_never_complete(kind: str, cut: dict[str, int]) -> None:
    owner, reader, provider = KINDS[kind](), KINDS[kind](), MemoryProvider()
    data = random_layers(LAYERS, LAYER_BYTES)
    try:
        address = await owner.listen("127.0.0.1", provider)
        lease, sink = provider.lend(data), MemorySink(LAYERS, LAYER_BYTES, **cut)
        async with damaging(address) as wire:
            with pytest.raises(WireError) as caught:
                await reader.fetch(handle=handle_for(wire), sink=sink, timeout_s=PATIENCE_S)
        assert caught.value.reason is Reason.KV_CHECKSUM
        assert not sink.completed
        assert await lease.until_closed() == [False]
        lease, sink = provider.lend(data, 1), MemorySink(LAYERS, LAYER_BYTES, **cut)
        await reader.fetch(handle=handle_for(address, 1), sink=sink, timeout_s=PATIENCE_S)
        assert sink.content == data and await lease.until_closed() == [True]
    finally:
        await reader.aclose()
        await owner.aclose()
