"""UCX within one machine: the reader takes long runs itself, and everything else comes by messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from common.errors import Reason, WireError
from common.transport.memory_proof import NONCE_BYTES, HeldProof
from common.transport.memory_run import MemoryRun, Spans
from common.transport.ucx import UcxTransport
from common.transport.ucx_memory import PeerMemory
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime
from tests.transport.doubles import OWNER, PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers

LAYERS, LAYER_BYTES = 3, 5 << 20
NOWHERE = 4096
"""An address at which no process has memory."""


class CountingSink(MemorySink):
    """Knows how it was filled."""

    def __init__(self, **cut: int) -> None:
        super().__init__(LAYERS, LAYER_BYTES, **cut)
        self.taken_layers = 0

    def memory(self, layer: int) -> MemoryRun:
        self.taken_layers += 1
        return super().memory(layer)


async def fetched(provider: MemoryProvider, sink: CountingSink, *, carriers: str = "all", times: int = 1) -> None:
    """Read into `sink` over one pair of transports."""
    owner, reader = UcxTransport(carriers=carriers), UcxTransport(carriers=carriers)
    try:
        address = await owner.listen("127.0.0.1", provider)
        for _ in range(times):
            handle = handle_for(address, transport="ucx")
            await reader.fetch(handle=handle, sink=sink, timeout_s=PATIENCE_S)
    finally:
        await reader.aclose()
        await owner.aclose()


@pytest.mark.parametrize("sink_cut", [{}, {"piece_bytes": 70_000, "gap_bytes": 11}], ids=["one run", "pieces"])
@pytest.mark.parametrize("owner_cut", [{}, {"piece_bytes": 100_000, "gap_bytes": 3}], ids=["one run", "pieces"])
async def test_a_reader_takes_what_lies_in_long_runs(sink_cut: dict[str, int], owner_cut: dict[str, int]) -> None:
    provider, data = MemoryProvider(), random_layers(LAYERS, LAYER_BYTES)
    lease = provider.lend(data, **owner_cut)
    sink = CountingSink(**sink_cut)
    sink.in_long_runs = True
    await fetched(provider, sink)
    assert sink.content == data and sink.taken_layers == LAYERS
    assert await lease.until_closed() == [True]


@pytest.mark.parametrize("why", ["short runs", "reader on a GPU", "owner on a GPU", "another network"])
async def test_what_a_reader_cannot_take_comes_by_messages(why: str) -> None:
    provider, data = MemoryProvider(), random_layers(LAYERS, LAYER_BYTES)
    lease = provider.lend(data)
    sink = CountingSink()
    sink.in_long_runs = why != "short runs"
    sink.in_host_memory = why != "reader on a GPU"
    provider.in_host_memory = why != "owner on a GPU"
    await fetched(provider, sink, carriers="tcp,self" if why == "another network" else "all", times=2)
    assert sink.content == data and sink.taken_layers == 0
    assert await lease.until_closed() == [True, True]


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[UcxEndpoint, PeerMemory]]:
    """An endpoint to another worker of this process, and what can be read through it."""
    reader, owner = UcxRuntime(), UcxRuntime()
    proof = HeldProof(bytes(NONCE_BYTES), OWNER)
    peer = owner.answer_to(reader.introduction(0), proof)
    made = await reader.connect(peer.worker_address)
    memory = made.peer_memory(peer.memory_key)
    assert memory is not None
    yield made, memory
    await made.abort([])
    await reader.close()
    await owner.close()


async def test_a_wrong_address_fails_at_once_and_harms_nobody(endpoint: tuple[UcxEndpoint, PeerMemory]) -> None:
    made, memory = endpoint
    target = MemoryRun(memoryview(bytearray(64)), [0], [64])
    with pytest.raises(OSError, match="address"):
        memory.read(target.spans, Spans(np.array([[NOWHERE, 64]], dtype=np.uint64)))
    assert not made.alive, "UCX takes the peer for lost; the next read makes another endpoint"


async def test_without_a_key_there_is_nothing_to_take() -> None:
    runtime = UcxRuntime()
    made = await runtime.connect(runtime.introduction(0).worker_address)
    try:
        assert made.peer_memory(b"") is None
    finally:
        await made.abort([])
        await runtime.close()


async def test_reads_end_when_the_owner_closes() -> None:
    provider = MemoryProvider()
    lease = provider.lend(random_layers(LAYERS, LAYER_BYTES))
    lease.gates[1] = asyncio.Event()
    owner, reader = UcxTransport(), UcxTransport()
    address = await owner.listen("127.0.0.1", provider)
    sink = CountingSink()
    fetch = asyncio.create_task(
        reader.fetch(handle=handle_for(address, transport="ucx"), sink=sink, timeout_s=PATIENCE_S)
    )
    await lease.until_reached(1)
    await owner.aclose()
    with pytest.raises(WireError) as caught:
        await fetch
    assert caught.value.reason is Reason.PEER_LOST and sink.taken_layers
    assert lease.closes == [False]
    await reader.aclose()
