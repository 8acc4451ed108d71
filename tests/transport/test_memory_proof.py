"""Owners that would have a reader read somebody else's memory as theirs: nothing is read, and K/V comes another way."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from common.core.ids import WorkerId, WorkerLife
from common.errors import Reason
from common.transport.auto import AutoTransport
from common.transport.direct import DirectTransport
from common.transport.frames import HEADER_BYTES, FrameKind, encode_control
from common.transport.memory_proof import PROOF_BYTES, Challenge, HeldProof
from common.transport.memory_run import Spans, address_of
from common.transport.messages import DirectHello, DirectOffer, UcxPeer
from common.transport.process_memory import read_memory
from common.transport.ucx import UcxTransport
from common.transport.ucx_runtime import UcxRuntime
from common.transport.ucx_seal import Side, sealed
from tests.transport.doubles import OWNER, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.test_direct_faults import HERE, closing, failure_of
from tests.transport.test_transport_processes import owner_process
from tests.transport.test_ucx_direct import CountingSink
from tests.transport.wire_peer import (
    accept_frame,
    data_frame,
    read_frame,
    refusal_frame,
    scripted_owner,
    trailer_frame,
)

ANOTHER = WorkerLife(WorkerId("p1"), OWNER.incarnation)
LATER = replace(OWNER, incarnation=OWNER.incarnation + 1)
LAYER = 64
DATA = random_layers(2, LAYER)
OVER_TCP = accept_frame(2, LAYER) + data_frame(0, 0, DATA[0]) + data_frame(1, 0, DATA[1]) + trailer_frame()


def own_memory(local: Spans, remote: Spans) -> None:
    read_memory(os.getpid(), local, remote)


def test_the_proof_of_the_owner_asked_is_found() -> None:
    challenge = Challenge(OWNER)
    proof = HeldProof(challenge.nonce, OWNER)
    assert challenge.met_at(proof.address, own_memory)
    assert not challenge.met_at(proof.address - 1, own_memory)
    assert not Challenge(OWNER).met_at(proof.address, own_memory), "each nonce takes another"


@pytest.mark.parametrize("life", [ANOTHER, LATER], ids=["another worker", "another life"])
def test_the_proof_of_another_owner_is_none(life: WorkerLife) -> None:
    challenge = Challenge(OWNER)
    assert not challenge.met_at(HeldProof(challenge.nonce, life).address, own_memory)


def test_where_there_is_no_memory_there_is_no_proof() -> None:
    with pytest.raises(OSError, match="address"):
        Challenge(OWNER).met_at(4096, own_memory)


# Owners of whom a script says how they answer a reader's greeting; what they hold lies in `held`.

Held = list[object]
Offer = Callable[[DirectHello, Held], bytes]


def offer_of(address: int, pid: int = 0) -> bytes:
    return encode_control(DirectOffer(machine=HERE, pid=pid or os.getpid(), proof_address=address))


def offer_of_proof(proof: HeldProof, held: Held) -> bytes:
    held.append(proof)
    return offer_of(proof.address)


def made_up(hello: DirectHello, held: Held) -> bytes:
    held.append(own := os.urandom(PROOF_BYTES))
    return offer_of(address_of(memoryview(own)))


def the_nonce_itself(hello: DirectHello, held: Held) -> bytes:
    held.append(hello)
    return offer_of(address_of(memoryview(hello.nonce)))


def stale(hello: DirectHello, held: Held) -> bytes:
    """What was an answer to another connection's nonce."""
    return offer_of_proof(HeldProof(Challenge(OWNER).nonce, OWNER), held)


def nothing_there(hello: DirectHello, held: Held) -> bytes:
    return offer_of(4096)


def refusal(hello: DirectHello, held: Held) -> bytes:
    return refusal_frame(Reason.LAYOUT_MISMATCH, "out of reach")


def kind_of(frame: bytes) -> FrameKind:
    return FrameKind(frame[5])


@contextlib.asynccontextmanager
async def owner_that(offers: Offer) -> AsyncIterator[tuple[str, list[FrameKind]]]:
    """Address of an owner that offers its memory in that way and lends nothing; over TCP it gives what is asked for.
    And what each of its readers began with."""
    held: Held = []
    begun: list[FrameKind] = []

    async def script(first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.append(kind_of(first))
        if begun[-1] is FrameKind.DIRECT_HELLO:
            writer.write(offers(DirectHello.decode(first[HEADER_BYTES:]), held))
        frame = first
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                if kind_of(frame) is FrameKind.REQUEST:
                    writer.write(OVER_TCP)
                frame = await read_frame(reader)

    async with scripted_owner(script) as address:
        yield address, begun


async def assert_read_over_tcp(address: str, begun: list[FrameKind]) -> None:
    """Twice; the owner's memory is tried once."""
    reader = AutoTransport(ucx=None)
    async with closing(reader):
        for _ in range(2):
            sink = MemorySink(2, LAYER)
            fetched = await reader.fetch(handle=handle_for(address, transport="direct+tcp"), sink=sink, timeout_s=20.0)
            assert (fetched.path, sink.content) == ("tcp", DATA)
    assert begun[0] is FrameKind.DIRECT_HELLO and begun[1:] == [FrameKind.REQUEST]


@pytest.mark.parametrize("offers", [made_up, the_nonce_itself, stale, nothing_there, refusal])
async def test_an_owner_that_proves_nothing_is_read_over_tcp(offers: Offer) -> None:
    async with owner_that(offers) as (address, begun):
        await assert_read_over_tcp(address, begun)


async def test_an_owner_that_names_another_process_is_read_over_tcp() -> None:
    """It holds the proof, but not there."""
    async with owner_process("direct") as (child, _):

        def elsewhere(hello: DirectHello, held: Held) -> bytes:
            held.append(proof := HeldProof(hello.nonce, OWNER))
            return offer_of(proof.address, child.pid)

        async with owner_that(elsewhere) as (address, begun):
            await assert_read_over_tcp(address, begun)


async def test_direct_reads_alone_fail_without_a_proof() -> None:
    reader = DirectTransport()
    async with owner_that(made_up) as (address, _), closing(reader):
        failure = await failure_of(reader, address, MemorySink(2, LAYER))
    assert failure.reason is Reason.LAYOUT_MISMATCH and "no direct path" in failure.message


async def test_an_owner_that_passes_on_what_another_one_offers_is_not_read() -> None:
    """All that the reader hears is said by an honest owner: of another life."""
    provider, owner, reader = MemoryProvider(), AutoTransport(ucx=None), AutoTransport(ucx=None)
    provider.life = ANOTHER
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        lease, sink = provider.lend(DATA), MemorySink(2, LAYER)
        fetched = await reader.fetch(handle=handle_for(address, transport=owner.name), sink=sink, timeout_s=20.0)
        assert (fetched.path, sink.content) == ("tcp", DATA)
        assert await lease.until_closed() == [True]


async def test_over_ucx_too_only_the_memory_of_the_owner_asked_is_read() -> None:
    """Its worker's address says which process is read, and may be another's: messages do without."""
    runtime, nonces, held = UcxRuntime(), [], []

    async def script(first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = UcxPeer.decode(first[HEADER_BYTES:])
        nonces.append(peer.nonce)
        held.append(proof := HeldProof(peer.nonce, ANOTHER))
        writer.write(encode_control(sealed(runtime.answer_to(peer, proof), OWNER, Side.OWNER)))
        with contextlib.suppress(asyncio.IncompleteReadError):
            writer.write(refusal_frame(Reason.KV_NOT_FOUND, "none here", request=await read_frame(reader)))

    sink = CountingSink()
    sink.in_long_runs = True
    reader = UcxTransport()
    try:
        async with scripted_owner(script) as address, closing(reader):
            failure = await failure_of(reader, address, sink)
    finally:
        await runtime.close()
    assert failure.reason is Reason.KV_NOT_FOUND and sink.taken_layers == 0
    assert [bool(nonce) for nonce in nonces] == [True, False]
