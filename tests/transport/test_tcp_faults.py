"""TCP against peers on raw sockets that cut, damage, stall and lie."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
from collections.abc import AsyncIterator

import pytest

from common.errors import Reason, WireError
from common.transport import owner_session
from common.transport.base import KvProvider
from common.transport.byte_stream import ByteStream
from common.transport.frames import GOOD_DATA_BYTES, HEADER_BYTES, MAX_DATA_BYTES, encode_control
from common.transport.messages import Ack, Refusal
from common.transport.tcp import TcpTransport
from tests.transport.doubles import PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.wire_peer import (
    accept_frame,
    data_frame,
    raw_reader,
    read_frame,
    request_frame,
    scripted_owner,
    trailer_frame,
)

LAYER = 64
DATA = random_layers(2, LAYER)
GOOD = accept_frame(2, LAYER) + data_frame(0, 0, DATA[0]) + data_frame(1, 0, DATA[1]) + trailer_frame()


@contextlib.asynccontextmanager
async def transport(**limits: float) -> AsyncIterator[TcpTransport]:
    made = TcpTransport(**limits)
    try:
        yield made
    finally:
        await made.aclose()


async def fetch_from_script(wire: bytes, *, hold: bool = False, timeout_s: float = 20.0) -> MemorySink:
    """Fetch from an owner that answers with `wire`, then closes (or holds the connection until the reader leaves)."""

    async def script(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire)
        if hold:
            with contextlib.suppress(OSError):
                await reader.read()

    sink = MemorySink(2, LAYER)
    async with scripted_owner(script) as address, transport() as reader:
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=timeout_s)
    return sink


async def failure_of(wire: bytes, *, hold: bool = False, timeout_s: float = 20.0) -> Reason:
    with pytest.raises(WireError) as caught:
        await fetch_from_script(wire, hold=hold, timeout_s=timeout_s)
    return caught.value.reason


async def test_the_scripted_owner_is_understood() -> None:
    assert (await fetch_from_script(GOOD, hold=True)).content == DATA


@pytest.mark.parametrize(
    "cut",
    [
        0,
        1,
        HEADER_BYTES,
        HEADER_BYTES + 5,
        60,
        len(GOOD) - HEADER_BYTES - LAYER,
        len(GOOD) - HEADER_BYTES,
        len(GOOD) - 1,
    ],
)
async def test_an_early_end_is_never_success(cut: int) -> None:
    assert await failure_of(GOOD[:cut]) is Reason.PEER_LOST


@pytest.mark.parametrize("cut", [0, 10, len(GOOD) - 1])
async def test_a_silent_half_open_owner_is_given_up(cut: int) -> None:
    assert await failure_of(GOOD[:cut], hold=True, timeout_s=0.2) is Reason.PEER_LOST


@pytest.mark.parametrize("place", [40, HEADER_BYTES + 12 + 8, len(GOOD) - 100, len(GOOD) - 1])
async def test_damage_is_found(place: int) -> None:
    damaged = bytearray(GOOD)
    damaged[place] ^= 0x10
    assert await failure_of(bytes(damaged), hold=True) is Reason.KV_CHECKSUM


NOISE = random.Random(1).randbytes(4096)


@pytest.mark.parametrize(
    "wire", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, NOISE, bytes(500)], ids=["http", "noise", "zeros"]
)
async def test_a_peer_that_speaks_something_else(wire: bytes) -> None:
    assert await failure_of(wire, hold=True) is Reason.KV_CHECKSUM


async def test_data_before_accept_and_extra_layers_are_refused() -> None:
    assert await failure_of(data_frame(0, 0, DATA[0]), hold=True) is Reason.KV_CHECKSUM
    assert await failure_of(accept_frame(2, LAYER) * 2, hold=True) is Reason.KV_CHECKSUM
    swapped = accept_frame(2, LAYER) + data_frame(1, 0, DATA[1])
    assert await failure_of(swapped, hold=True) is Reason.KV_CHECKSUM


async def test_a_refusal_between_layers_keeps_its_reason() -> None:
    refusal = encode_control(Refusal(error=WireError(Reason.KV_LEASE_EXPIRED, "over"), number=1))
    wire = accept_frame(2, LAYER) + data_frame(0, 0, DATA[0]) + refusal
    assert await failure_of(wire) is Reason.KV_LEASE_EXPIRED


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "127.0.0.1:x", ":80", "127.0.0.1:99999"])
async def test_an_address_that_is_none(address: str) -> None:
    async with transport() as reader:
        with pytest.raises(WireError) as caught:
            await reader.fetch(handle=handle_for(address), sink=MemorySink(1, 8), timeout_s=5.0)
    assert caught.value.reason is Reason.PEER_LOST


async def test_a_connection_that_never_completes_is_given_up() -> None:
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        async with transport(connect_timeout_s=0.2) as reader:
            address = f"127.0.0.1:{full.getsockname()[1]}"
            with pytest.raises(WireError, match=r"within 0\.2 s") as caught:
                await reader.fetch(handle=handle_for(address), sink=MemorySink(1, 8), timeout_s=30.0)
    assert caught.value.reason is Reason.PEER_LOST


@contextlib.asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[tuple[TcpTransport, MemoryProvider, str]]:
    provider = MemoryProvider()
    async with transport(**limits) as owner:
        yield owner, provider, await owner.listen("127.0.0.1", provider)


async def fetch_still_works(provider: MemoryProvider, address: str) -> None:
    lease = provider.lend(DATA, 99)
    sink = MemorySink(2, LAYER)
    async with transport() as reader:
        await reader.fetch(handle=handle_for(address, 99), sink=sink, timeout_s=20.0)
        await lease.until_closed()
    assert sink.content == DATA and lease.closes == [True]


async def let_in_again(provider: MemoryProvider, address: str) -> bool:
    """Whether a fetch succeeds before long; until the owner has noticed who left it may be turned away."""
    for _ in range(1000):
        try:
            await fetch_still_works(provider, address)
        except WireError as error:
            assert error.reason is Reason.PEER_LOST
            await asyncio.sleep(0.01)
        else:
            return True
    return False


async def test_garbage_and_huge_lengths_do_not_hurt_the_owner() -> None:
    huge = bytearray(request_frame())
    huge[20:28] = (2**62).to_bytes(8, "little")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving() as (_, provider, address):
        for wire in (b"GET / HTTP/1.1\r\n\r\n" * 20, bytes(huge), NOISE, encode_control(Ack())):
            async with raw_reader(address) as (reader, writer):
                writer.write(wire)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 20.0) == b""
        await fetch_still_works(provider, address)
        assert [request.attempt.request_id for request in provider.requests] == ["request-99"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


async def test_a_reader_that_says_nothing_is_dropped() -> None:
    async with serving(handshake_timeout_s=0.1) as (_, provider, address):
        async with raw_reader(address) as (reader, _):
            assert await asyncio.wait_for(reader.read(), 20.0) == b""
        await fetch_still_works(provider, address)


async def test_more_connections_than_allowed_are_turned_away() -> None:
    async with serving(max_reads=2) as (_, provider, address), contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(raw_reader(address))
        async with raw_reader(address) as (reader, _):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20.0) == b""
        await stack.aclose()
        assert await let_in_again(provider, address)


async def test_reader_gone_after_the_last_byte_before_its_ack() -> None:
    async with serving() as (_, provider, address):
        lease = provider.lend(DATA)
        async with raw_reader(address) as (reader, writer):
            writer.write(request_frame())
            assert await reader.readexactly(len(GOOD)) == GOOD
        assert await lease.until_closed() == [False]


async def test_reader_that_never_acknowledges() -> None:
    """Long before the time for the whole read is over."""
    async with serving(stall_timeout_s=0.1) as (_, provider, address):
        lease = provider.lend(DATA)
        async with raw_reader(address) as (reader, writer):
            writer.write(request_frame(timeout_s=2 * PATIENCE_S))
            await reader.readexactly(len(GOOD))
            assert await lease.until_closed() == [False]


@pytest.mark.parametrize("early", [encode_control(Ack()), request_frame(), b"x"], ids=["ack", "request", "noise"])
async def test_reader_that_speaks_too_early_gets_no_delivery(early: bytes) -> None:
    async with serving() as (_, provider, address):
        lease = provider.lend(DATA)
        lease.gates[1] = asyncio.Event()
        async with raw_reader(address) as (reader, writer):
            writer.write(request_frame())
            await reader.readexactly(len(GOOD) - LAYER - HEADER_BYTES - len(trailer_frame()))
            writer.write(early)
            assert await lease.until_closed() == [False]


async def test_reader_that_answers_something_else_than_an_ack() -> None:
    async with serving() as (_, provider, address):
        lease = provider.lend(DATA)
        async with raw_reader(address) as (reader, writer):
            writer.write(request_frame())
            await reader.readexactly(len(GOOD))
            writer.write(request_frame())
            assert await lease.until_closed() == [False]


async def test_reader_that_keeps_its_connection_and_asks_for_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_session, "IDLE_TIMEOUT_S", 0.1)
    async with serving() as (_, provider, address):
        lease = provider.lend(DATA)
        async with raw_reader(address) as (reader, writer), asyncio.timeout(PATIENCE_S):
            writer.write(request_frame())
            await reader.readexactly(len(GOOD))
            writer.write(encode_control(Ack()))
            assert await lease.until_closed() == [True]
            assert await reader.read() == b"", "dropped"


async def test_reader_that_is_early_for_a_prefill_that_never_begins() -> None:
    """It would stay for ever; what it has said of its own patience counts."""
    async with serving() as (_, provider, address):
        provider.begun = asyncio.Event()
        async with raw_reader(address) as (reader, writer), asyncio.timeout(PATIENCE_S):
            writer.write(request_frame(timeout_s=0.1, early=True))
            refusal = Refusal.decode((await read_frame(reader))[HEADER_BYTES:])
            assert refusal.error.reason is Reason.KV_NOT_FOUND
            assert await reader.read() == b"" and not provider.requests


async def test_reader_gone_while_a_layer_is_awaited_is_noticed() -> None:
    async with serving() as (_, provider, address):
        lease = provider.lend(DATA)
        lease.gates[1] = asyncio.Event()
        async with raw_reader(address) as (_, writer):
            writer.write(request_frame())
            await lease.until_reached(1)
        assert await lease.until_closed() == [False]


@pytest.mark.parametrize("ending", ["stall", "timeout", "revoke", "aclose"])
async def test_reader_that_takes_no_bytes_cannot_hold_the_lease(ending: str) -> None:
    """The socket fills up mid-frame; the owner's patience, the reader's own timeout or the owner's will ends it."""
    data = random_layers(2, 32 * MAX_DATA_BYTES)
    async with serving(stall_timeout_s=0.2 if ending == "stall" else 2 * PATIENCE_S) as (owner, provider, address):
        lease = provider.lend(data)
        async with raw_reader(address) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport has it
            writer.write(request_frame(timeout_s=0.3 if ending == "timeout" else 2 * PATIENCE_S))
            await lease.opened.wait()
            if ending in ("revoke", "aclose"):
                await asyncio.sleep(0.1)
                assert not lease.closes, "the send waits in the middle of a frame"
            if ending == "revoke":
                lease.revoke(WireError(Reason.KV_NOT_FOUND, "withdrawn"))
            elif ending == "aclose":
                await owner.aclose()
            assert await lease.until_closed() == [False]
            writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            assert_cut(await asyncio.wait_for(reader.read(), 20.0), data)


def assert_cut(wire: bytes, data: list[bytes]) -> None:
    """What came is the beginning of the right bytes: nothing is said in the middle of a frame."""
    right = accept_frame(2, len(data[0])) + b"".join(
        data_frame(layer, offset, content[offset : offset + GOOD_DATA_BYTES])
        for layer, content in enumerate(data)
        for offset in range(0, len(content), GOOD_DATA_BYTES)
    )
    assert len(wire) < len(right) and right[: len(wire)] == wire


async def test_a_host_name_will_do() -> None:
    provider = MemoryProvider()
    async with transport() as owner, transport() as reader:
        address = await owner.listen("localhost", provider)
        assert address.startswith("localhost:")
        lease, sink = provider.lend(DATA), MemorySink(2, LAYER)
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=20.0)
        assert sink.content == DATA
        await lease.until_closed()


class BrokenTransport(TcpTransport):
    """A bug meets every connection."""

    async def _serve_connection(self, stream: ByteStream, provider: KvProvider) -> None:
        raise KeyError("a bug")


async def test_a_bug_in_the_listener_is_told_to_whom_it_may_concern() -> None:
    owner = BrokenTransport()
    host, _, port = (await owner.listen("127.0.0.1", MemoryProvider())).rpartition(":")
    watching = asyncio.create_task(owner.watch())
    with socket.create_connection((host, int(port))), pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(watching, 20.0)
    assert caught.group_contains(KeyError, match="a bug")
    await owner.aclose()


async def test_a_listener_takes_the_port_it_is_given_again_after_a_restart() -> None:
    async with transport() as first:
        address = await first.listen("127.0.0.1", MemoryProvider())
        port = int(address.rpartition(":")[2])
        async with transport() as second:
            with pytest.raises(OSError, match="in use"):
                await second.listen("127.0.0.1", MemoryProvider(), port=port)
        with socket.create_connection(("127.0.0.1", port)):
            # Ended by the owner's side, this connection lingers at the port.
            await first.aclose()
    async with transport() as later:
        assert await later.listen("127.0.0.1", MemoryProvider(), port=port) == address
