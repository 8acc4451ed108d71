"""Introductions over UCX that the other end has not sealed: none of it reaches UCX, which would abort the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from common.core.ids import WorkerId, WorkerLife
from common.errors import Reason
from common.transport.frames import HEADER_BYTES, encode_control
from common.transport.messages import Refusal, UcxPeer
from common.transport.ucx import UcxTransport
from common.transport.ucx_runtime import UcxRuntime
from common.transport.ucx_seal import Side, is_sealed, sealed
from tests.transport.doubles import OWNER, PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.test_direct_faults import closing, failure_of
from tests.transport.wire_peer import raw_reader, read_frame, scripted_owner

ANOTHER = WorkerLife(WorkerId("p1"), OWNER.incarnation)
LATER = replace(OWNER, incarnation=OWNER.incarnation + 1)
DEADLY = b"\xff" * 64
"""UCX 1.21 fails an assertion over this address."""
LAYER = 3000
DATA = random_layers(2, LAYER)

Forge = Callable[[UcxPeer, Side], UcxPeer]
"""An introduction in the place of a right one of that side, not yet sealed."""


def unsealed(peer: UcxPeer, side: Side) -> UcxPeer:
    return replace(peer, worker_address=DEADLY)


def of_another_worker(peer: UcxPeer, side: Side) -> UcxPeer:
    return sealed(replace(peer, worker_address=DEADLY), ANOTHER, side)


def of_another_life(peer: UcxPeer, side: Side) -> UcxPeer:
    return sealed(replace(peer, worker_address=DEADLY), LATER, side)


def of_the_other_side(peer: UcxPeer, side: Side) -> UcxPeer:
    other = Side.OWNER if side is Side.READER else Side.READER
    return sealed(peer, OWNER, other)


def with_another_address(peer: UcxPeer, side: Side) -> UcxPeer:
    return replace(sealed(peer, OWNER, side), worker_address=DEADLY)


def with_another_key(peer: UcxPeer, side: Side) -> UcxPeer:
    return replace(sealed(peer, OWNER, side), memory_key=DEADLY)


FORGERIES = pytest.mark.parametrize(
    "forge",
    [unsealed, of_another_worker, of_another_life, of_the_other_side, with_another_address, with_another_key],
)


def test_a_seal_is_that_of_one_life_and_one_side() -> None:
    peer = sealed(UcxPeer(ucx_version="1.21", worker_address=b"here", first_tag=1), OWNER, Side.READER)
    assert is_sealed(UcxPeer.decode(peer.encode()), OWNER, Side.READER)
    assert not is_sealed(peer, OWNER, Side.OWNER)
    assert not is_sealed(peer, ANOTHER, Side.READER) and not is_sealed(peer, LATER, Side.READER)


@FORGERIES
async def test_an_owner_refuses_whoever_does_not_know_its_life(forge: Forge) -> None:
    owner, reader, provider, stranger = UcxTransport(), UcxTransport(), MemoryProvider(), UcxRuntime()
    try:
        async with closing(reader, owner):
            address = await owner.listen("127.0.0.1", provider)
            async with raw_reader(address) as (stream, writer):
                writer.write(encode_control(forge(stranger.introduction(1), Side.READER)))
                refusal = Refusal.decode((await read_frame(stream))[HEADER_BYTES:])
                assert await asyncio.wait_for(stream.read(), PATIENCE_S) == b""
            assert (refusal.error.reason, refusal.number) == (Reason.STALE_INCARNATION, 0)
            assert str(OWNER.incarnation) not in refusal.error.message, "a stranger is told nothing"
            lease, sink = provider.lend(DATA), MemorySink(2, LAYER)
            await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=PATIENCE_S)
            assert sink.content == DATA and await lease.until_closed() == [True]
    finally:
        await stranger.close()


@FORGERIES
@pytest.mark.parametrize("in_long_runs", [True, False], ids=["long runs", "pieces"])
async def test_a_reader_believes_no_owner_that_does_not_know_its_life(forge: Forge, in_long_runs: bool) -> None:
    stranger, reader, sink = UcxRuntime(), UcxTransport(), MemorySink(2, LAYER)
    sink.in_long_runs = in_long_runs

    async def script(first: bytes, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = stranger.answer_to(UcxPeer.decode(first[HEADER_BYTES:]), None)
        writer.write(encode_control(forge(answer, Side.OWNER)))
        await stream.read()

    try:
        async with scripted_owner(script) as address, closing(reader):
            failure = await failure_of(reader, address, sink)
    finally:
        await stranger.close()
    assert failure.reason is Reason.KV_CHECKSUM and "not this owner's answer" in failure.message


async def test_a_reader_is_not_taken_in_by_its_own_words() -> None:
    async def echo(first: bytes, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await stream.read()

    reader = UcxTransport()
    async with scripted_owner(echo) as address, closing(reader):
        failure = await failure_of(reader, address, MemorySink(2, LAYER))
    assert failure.reason is Reason.KV_CHECKSUM


@pytest.mark.parametrize("in_long_runs", [True, False], ids=["long runs", "pieces"])
async def test_a_reader_that_was_sent_to_an_earlier_life_hears_so(in_long_runs: bool) -> None:
    owner, reader, provider, sink = UcxTransport(), UcxTransport(), MemoryProvider(), MemorySink(2, LAYER)
    provider.life, sink.in_long_runs = LATER, in_long_runs
    async with closing(reader, owner):
        failure = await failure_of(reader, await owner.listen("127.0.0.1", provider), sink)
    assert failure.reason is Reason.STALE_INCARNATION and not provider.requests
