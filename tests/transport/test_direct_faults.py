"""Direct reads of owners that take pages back, die, lie, or cannot be read at all."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from common.errors import Reason, WireError
from common.transport.direct import DirectTransport
from common.transport.frames import HEADER_BYTES, encode_control
from common.transport.memory_proof import HeldProof
from common.transport.memory_run import MAX_SPANS, Spans
from common.transport.messages import MAX_LENT_BYTES, DirectHello, DirectOffer, Lent
from common.transport.process_memory import Machine, read_memory, this_machine
from common.transport.socket_transport import SocketTransport
from tests.transport.doubles import OWNER, MemoryProvider, MemorySink, Scattered, handle_for, random_layers
from tests.transport.test_transport_processes import LAYER_BYTES, LAYERS, SOON_S, new_sink, owner_process
from tests.transport.wire_peer import accept_frame, read_frame, scripted_owner, trailer_frame

_here = this_machine()
assert _here is not None
HERE: Machine = _here
ELSEWHERE = replace(HERE, boot_id="another machine")
APART = replace(HERE, pid_namespace="pid:[1]")


class Reads:
    """`ReadMemory` that counts, and does `before` the copy of that number (from 1; 1 is the owner's proof)."""

    def __init__(self) -> None:
        self.count = 0
        self.before: dict[int, Callable[[], None]] = {}

    def __call__(self, pid: int, local: Spans, remote: Spans) -> None:
        self.count += 1
        self.before.get(self.count, lambda: None)()
        read_memory(pid, local, remote)


class Forbidden(Reads):
    """`ReadMemory` of a reader without the permission that it takes."""

    def __call__(self, pid: int, local: Spans, remote: Spans) -> None:
        self.count += 1
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@contextlib.asynccontextmanager
async def closing(*transports: SocketTransport) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for transport in transports:
            await transport.aclose()


async def failure_of(reader: SocketTransport, address: str, sink: MemorySink, transport: str = "direct") -> WireError:
    with pytest.raises(WireError) as caught:
        await reader.fetch(handle=handle_for(address, transport=transport), sink=sink, timeout_s=20.0)
    return caught.value


# Pages that are taken back.


@pytest.mark.parametrize(("copy", "complete"), [(2, []), (3, []), (4, [0]), (5, [0, 1])])
async def test_pages_given_to_another_request_while_they_are_read_are_never_taken_for_the_right_ones(
    copy: int, complete: list[int]
) -> None:
    """The owner aborts the send and another request writes to its pages, before the reader gets to copy them."""
    provider, reads = MemoryProvider(), Reads()
    data = random_layers(3, MAX_LENT_BYTES)
    lease = provider.lend(data, piece_bytes=16_384, gap_bytes=100)

    def take_back() -> None:
        lease.revoke(WireError(Reason.KV_NOT_FOUND, "withdrawn"))
        for layer in range(3):
            lease.overwrite(layer)

    reads.before[copy] = take_back
    owner, reader = DirectTransport(), DirectTransport(read=reads)
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        sink = MemorySink(3, MAX_LENT_BYTES, piece_bytes=16_384, gap_bytes=300)
        assert (await failure_of(reader, address, sink)).reason is Reason.KV_NOT_FOUND, "what the owner said of it"
        assert await lease.until_closed() == [False]
        assert sink.completed == [(layer, data[layer]) for layer in complete], "none with wrong bytes is complete"
        lent_again, again = provider.lend(data), MemorySink(3, MAX_LENT_BYTES)
        await reader.fetch(handle=handle_for(address), sink=again, timeout_s=20.0)
        assert again.content == data and await lent_again.until_closed() == [True]


async def test_pages_that_change_without_a_word_are_damage() -> None:
    provider, reads = MemoryProvider(), Reads()
    lease = provider.lend(random_layers(2, MAX_LENT_BYTES))
    reads.before[3] = lambda: lease.overwrite(1)
    owner, reader = DirectTransport(), DirectTransport(read=reads)
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        assert (await failure_of(reader, address, MemorySink(2, MAX_LENT_BYTES))).reason is Reason.KV_CHECKSUM
        assert await lease.until_closed() == [False]


async def test_a_lease_that_is_over_when_its_bytes_have_been_copied_is_no_success() -> None:
    """The bytes are right, but the owner did not vouch for them to the end."""
    provider, reads = MemoryProvider(), Reads()
    lease = provider.lend(random_layers(2, 64))
    lease.trailer_gate = asyncio.Event()
    reads.before[3] = lambda: lease.revoke(WireError(Reason.KV_LEASE_EXPIRED, "over"))
    owner, reader = DirectTransport(), DirectTransport(read=reads)
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        assert (await failure_of(reader, address, MemorySink(2, 64))).reason is Reason.KV_LEASE_EXPIRED


async def test_a_reader_that_takes_its_time_is_not_given_up() -> None:
    """The owner has said everything at once, and has nothing to go by but the reader's own timeout."""
    provider, reads = MemoryProvider(), Reads()
    layers = 16
    data = random_layers(layers, MAX_LENT_BYTES)
    lease = provider.lend(data)
    owner, reader = DirectTransport(stall_timeout_s=0.05), DirectTransport(read=reads)
    reads.before = {copy: lambda: time.sleep(0.06) for copy in range(2, layers + 3)}
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        sink = MemorySink(layers, MAX_LENT_BYTES)
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=20.0)
        assert sink.content == data and await lease.until_closed() == [True]


# Owners that die.


@pytest.mark.parametrize("copy", [2, 5])
async def test_owner_killed_while_its_memory_is_read(copy: int) -> None:
    reads = Reads()
    async with owner_process("direct") as (child, address):
        reads.before[copy] = lambda: os.kill(child.pid, signal.SIGKILL)
        reader = DirectTransport(read=reads)
        async with closing(reader), asyncio.timeout(SOON_S):
            assert (await failure_of(reader, address, new_sink())).reason is Reason.PEER_LOST
            assert await child.wait() == -signal.SIGKILL


async def test_what_a_stopped_owner_has_lent_can_still_be_read() -> None:
    """The bytes are there, and so are their sums: only the rest is missing."""
    reads = Reads()
    async with owner_process("direct", LAYERS, signal.SIGSTOP) as (child, address):
        reader = DirectTransport(read=reads)
        sink = new_sink()
        async with closing(reader):
            with pytest.raises(WireError) as caught:
                await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=1.0)
        assert caught.value.reason is Reason.PEER_LOST
        right = random_layers(LAYERS, LAYER_BYTES)
        assert all(content == right[layer] for layer, content in sink.completed)
        child.send_signal(signal.SIGCONT)


# Owners that lie.


def offer_frame(proof: HeldProof) -> bytes:
    """This process is the owner, and holds the proof."""
    return encode_control(DirectOffer(machine=HERE, pid=os.getpid(), proof_address=proof.address))


def proof_for(hello: bytes) -> HeldProof:
    """An honest owner's answer to that frame."""
    return HeldProof(DirectHello.decode(hello[HEADER_BYTES:]).nonce, OWNER)


def lent_frame(offset_bytes: int, source: Scattered, *, wrong: int = 0) -> bytes:
    payload_sum = xxh3_64_intdigest(source.content) ^ wrong
    return encode_control(Lent(offset_bytes=offset_bytes, payload_sum=payload_sum, spans=source.run.spans))


LAYER = 64
DATA = random_layers(2, LAYER)


def in_parts(*ends: int) -> list[Scattered]:
    """The bytes of both layers, cut at `ends`."""
    content = b"".join(DATA)
    return [Scattered(content[start:end], 10, gap_bytes=3) for start, end in pairwise((0, *ends))]


SOURCES = in_parts(LAYER, 2 * LAYER)
GOOD = accept_frame(2, LAYER) + lent_frame(0, SOURCES[0]) + lent_frame(LAYER, SOURCES[1]) + trailer_frame()


async def fetch_from_script(wire: bytes, offer: bytes | None = None) -> MemorySink:
    """Fetch from an owner that offers its memory (or says something else), and answers the request with `wire`."""

    async def script(hello: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proof = proof_for(hello)
        writer.write(offer or offer_frame(proof))
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await read_frame(reader)
            writer.write(wire)
            await reader.read()

    sink, reader = MemorySink(2, LAYER, piece_bytes=7, gap_bytes=2), DirectTransport()
    async with scripted_owner(script) as address, closing(reader):
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=20.0)
    return sink


@pytest.mark.parametrize("ends", [(64, 128), (128,), (1, 127, 128), (63, 65, 128), (10, 100, 128)])
async def test_what_is_lent_may_be_cut_anywhere(ends: tuple[int, ...]) -> None:
    """Within a layer, between two, or all of the read at once."""
    parts = in_parts(*ends)
    lent = [lent_frame(start, part) for start, part in zip((0, *ends), parts, strict=False)]
    sink = await fetch_from_script(accept_frame(2, LAYER) + b"".join(lent) + trailer_frame())
    assert sink.content == DATA
    assert sink.completed == list(enumerate(DATA))


LIES = {
    "layer skipped": lent_frame(LAYER, SOURCES[0]),
    "gap": lent_frame(4, Scattered(bytes(60), 60, gap_bytes=0)),
    "repeated": lent_frame(0, SOURCES[0]) * 2,
    "longer than the read": lent_frame(0, Scattered(bytes(2 * LAYER + 1), 80, gap_bytes=0)),
    "longer than the rest": lent_frame(0, SOURCES[0]) + lent_frame(LAYER, Scattered(bytes(LAYER + 1), 80, gap_bytes=0)),
    "far longer than the read": lent_frame(0, Scattered(bytes(MAX_LENT_BYTES), MAX_LENT_BYTES, gap_bytes=0)),
    "more than the read": GOOD[len(accept_frame(2, LAYER)) : -len(trailer_frame())] + lent_frame(2 * LAYER, SOURCES[0]),
    "wrong sum": lent_frame(0, SOURCES[0], wrong=1 << 63) + trailer_frame(),
    "trailer too early": lent_frame(0, SOURCES[0]) + trailer_frame(),
    "accepted twice": accept_frame(2, LAYER),
    "offered twice": encode_control(DirectOffer(machine=HERE, pid=os.getpid(), proof_address=4096)),
}


@pytest.mark.parametrize("wire", LIES.values(), ids=LIES)
async def test_lent_memory_out_of_order_or_too_long_is_refused(wire: bytes) -> None:
    with pytest.raises(WireError) as caught:
        await fetch_from_script(accept_frame(2, LAYER) + wire)
    assert caught.value.reason is Reason.KV_CHECKSUM


@pytest.mark.parametrize(("lent_bytes", "spans"), [(1, 1), (MAX_SPANS, MAX_SPANS)], ids=["a byte each", "crumbs"])
async def test_an_owner_that_lends_crumbs_holds_nobody_up(lent_bytes: int, spans: int) -> None:
    """What is copied costs by the piece, too: others get their turns."""
    lents, turns = 100, 0
    source = Scattered(bytes(lent_bytes), lent_bytes // spans, gap_bytes=1)
    wire = b"".join(lent_frame(lent_bytes * number, source) for number in range(lents))

    async def script(hello: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proof = proof_for(hello)
        writer.write(offer_frame(proof))
        await read_frame(reader)
        writer.write(accept_frame(1, lent_bytes * lents) + wire + trailer_frame())
        await reader.read()

    taken: list[int] = []
    others = asyncio.Event()

    class Noting(Reads):
        def __call__(self, pid: int, local: Spans, remote: Spans) -> None:
            super().__call__(pid, local, remote)
            taken.append(turns)

    async def turn() -> None:
        nonlocal turns
        while not others.is_set():
            turns += 1
            await asyncio.sleep(0)

    sink, reader = MemorySink(1, lent_bytes * lents), DirectTransport(read=Noting())
    turning = asyncio.create_task(turn())
    async with scripted_owner(script) as address, closing(reader):
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=20.0)
    others.set()
    await turning
    assert sink.content == [bytes(lent_bytes * lents)]
    assert max(Counter(taken).values()) <= (32 if spans == 1 else 1)


async def test_lent_memory_that_is_not_there_is_a_lost_owner() -> None:
    nowhere = Spans(np.array([[4096, LAYER]], dtype=np.uint64))
    lent = encode_control(Lent(offset_bytes=0, payload_sum=0, spans=nowhere))
    with pytest.raises(WireError) as caught:
        await fetch_from_script(accept_frame(2, LAYER) + lent)
    assert caught.value.reason is Reason.PEER_LOST


@pytest.mark.parametrize("wire", [b"", accept_frame(2, LAYER), b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3])
async def test_something_else_than_an_offer_is_malformed(wire: bytes) -> None:
    with pytest.raises(WireError) as caught:
        await fetch_from_script(b"", wire or GOOD)
    assert caught.value.reason is Reason.KV_CHECKSUM
