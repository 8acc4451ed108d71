"""What an owner lends is checked before each thing that it sends, whatever carries the bytes."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import Reason, WireError
from common.transport.frames import MAX_DATA_BYTES
from tests.transport.conftest import Pair
from tests.transport.doubles import MemorySink, random_layers


async def test_check_runs_before_every_piece(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(3, 2 * MAX_DATA_BYTES))
    await pair.fetch(MemorySink(3, 2 * MAX_DATA_BYTES))
    assert lease.checks >= 6


async def test_a_lease_that_expires_mid_read_ends_it_with_its_reason(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(4, 1000))

    def expire(_: int) -> None:
        if lease.reached[2].is_set():
            raise WireError(Reason.KV_LEASE_EXPIRED, "lease is over")

    lease.on_check = expire
    sink = MemorySink(4, 1000)
    with pytest.raises(WireError) as caught:
        await pair.fetch(sink)
    assert caught.value.reason is Reason.KV_LEASE_EXPIRED
    assert sink.content[2:] == [bytes(1000)] * 2
    assert [layer for layer, _ in sink.completed] in ([], [0], [0, 1]), "what was on its way may still arrive"
    assert not lease.reached[3].is_set()
    assert await lease.until_closed() == [False]


async def test_a_lease_that_expires_before_the_trailer_leaves_ends_the_read_with_its_reason(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 1000))
    lease.trailer_gate = asyncio.Event()

    def expire(_: int) -> None:
        raise WireError(Reason.KV_LEASE_EXPIRED, "lease is over")

    sink = MemorySink(2, 1000)
    fetch = asyncio.create_task(pair.fetch(sink))
    await sink.until_full()
    lease.on_check = expire
    lease.trailer_gate.set()
    with pytest.raises(WireError) as caught:
        await fetch
    assert caught.value.reason is Reason.KV_LEASE_EXPIRED
    assert await lease.until_closed() == [False]
