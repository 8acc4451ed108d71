"""Readers that come before the K/V is there: they get each layer when it is computed, or hear why it will not come."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from common.core.ids import WorkerLife
from common.errors import Reason, WireError
from common.transport.base import KvReadRequest, KvTransport
from common.worker.kv_staging import KvStaging
from common.worker.pool_sink import PoolSink
from tests.worker.kv_owner import (
    ATTEMPT,
    CANVAS_TOKENS,
    FIRST,
    LAYOUT,
    LEASE_S,
    LIFE,
    OWNER_PAGES,
    READER_PAGES,
    REQUEST,
    Owner,
    assert_moved,
    handle,
    random_pool,
)
from tests.worker.waiting import eventually


class Prefill:
    """A prefill in the middle of its layers, announced by its worker; `compute` finishes one more."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._right = owner.pool.tensor.clone()
        owner.pool.tensor.zero_()
        owner.serving.announce(ATTEMPT, OWNER_PAGES)

    def compute(self, layer: int) -> None:
        self._owner.pool.tensor[layer].copy_(self._right[layer])
        self._owner.serving.layer_computed([ATTEMPT, replace(ATTEMPT, block=9)], layer, None)

    def end(self) -> None:
        self._owner.serving.offer(ATTEMPT, OWNER_PAGES, CANVAS_TOKENS, LEASE_S)
        self._owner.serving.first_revealed(ATTEMPT, FIRST)
        self._owner.serving.retract([ATTEMPT])


class WatchedSink(PoolSink):
    """Counts the layers that are complete."""

    completed = 0

    async def complete(self, layer: int) -> None:
        await super().complete(layer)
        self.completed += 1

    async def until_completed(self, layers: int) -> None:
        await eventually(lambda: self.completed == layers)


async def test_a_reader_may_come_before_the_prefill_has_ended(owner: Owner, transport: KvTransport) -> None:
    prefill, reader = Prefill(owner), random_pool(2)
    before = reader.tensor.clone()
    address = await transport.listen("127.0.0.1", owner.serving)
    with WatchedSink(KvStaging(reader), READER_PAGES) as sink:
        fetch = asyncio.create_task(transport.fetch(handle=handle(address, transport), sink=sink, timeout_s=20.0))
        for layer in range(LAYOUT.n_layers):
            assert sink.completed == layer and not fetch.done()
            prefill.compute(layer)
            await sink.until_completed(layer + 1)
        assert owner.log == [f"started {ATTEMPT}"], "the worker core knows of it before it retains the K/V"
        prefill.end()
        fetched = await fetch
    await owner.idle.wait()
    assert_moved(owner.pool, reader, before)
    assert fetched.trailer == FIRST
    assert owner.log == [f"{what} {ATTEMPT}" for what in ("started", "ended", "delivered")]


async def test_a_prefill_that_keeps_nothing_ends_its_early_readers(owner: Owner, transport: KvTransport) -> None:
    prefill = Prefill(owner)
    address = await transport.listen("127.0.0.1", owner.serving)
    with WatchedSink(KvStaging(random_pool(2)), READER_PAGES) as sink:
        fetch = asyncio.create_task(transport.fetch(handle=handle(address, transport), sink=sink, timeout_s=20.0))
        prefill.compute(0)
        await sink.until_completed(1)
        owner.serving.retract([ATTEMPT])
        with pytest.raises(WireError) as caught:
            await fetch
    assert caught.value.reason is Reason.KV_NOT_FOUND
    await owner.idle.wait()
    assert owner.log == [f"started {ATTEMPT}", f"ended {ATTEMPT}"]
    owner.log.clear()
    assert owner.refusal() is Reason.KV_NOT_FOUND


async def test_an_early_reader_may_come_before_the_prefill_has_begun(owner: Owner, transport: KvTransport) -> None:
    reader, before = random_pool(2), owner.pool.tensor.clone()
    address = await transport.listen("127.0.0.1", owner.serving)
    with PoolSink(KvStaging(reader), READER_PAGES) as sink:
        wanted = handle(address, transport)
        fetch = asyncio.create_task(transport.fetch(handle=wanted, sink=sink, timeout_s=20.0, early=True))
        await asyncio.sleep(0.05)
        assert not owner.log and not fetch.done()
        owner.serving.announce(replace(ATTEMPT, attempt=0), OWNER_PAGES)
        prefill = Prefill(owner)
        for layer in range(LAYOUT.n_layers):
            prefill.compute(layer)
        prefill.end()
        fetched = await fetch
    await owner.idle.wait()
    assert torch.equal(reader.tensor[:, :, list(READER_PAGES)], before[:, :, list(OWNER_PAGES)])
    assert fetched.trailer == FIRST
    assert owner.log == [f"{what} {ATTEMPT}" for what in ("started", "ended", "delivered")]


async def _wait_for(owner: Owner, request: KvReadRequest) -> asyncio.Task[None]:
    waiting = asyncio.create_task(owner.serving.until_begun(request))
    await asyncio.sleep(0)
    return waiting


async def test_who_waits_for_a_prefill_hears_that_a_newer_attempt_has_replaced_it(owner: Owner) -> None:
    early = replace(REQUEST, early=True)
    waiting = await _wait_for(owner, early)
    assert not waiting.done()
    owner.serving.announce(replace(ATTEMPT, attempt=ATTEMPT.attempt + 1), OWNER_PAGES)
    await waiting
    assert owner.refusal(early) is Reason.STALE_ATTEMPT


async def test_who_waits_for_a_prefill_hears_that_its_life_is_over(owner: Owner) -> None:
    early = replace(REQUEST, early=True)
    waiting = await _wait_for(owner, early)
    owner.life = WorkerLife(LIFE.worker_id, 6)
    owner.serving.end_waits()
    await waiting
    assert owner.refusal(early) is Reason.STALE_INCARNATION


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"early": False}, Reason.KV_NOT_FOUND),
        ({"owner": WorkerLife(LIFE.worker_id, 4)}, Reason.STALE_INCARNATION),
        ({"attempt": replace(ATTEMPT, attempt=0)}, Reason.STALE_ATTEMPT),
    ],
)
async def test_nobody_waits_for_what_will_not_come(owner: Owner, change, reason: Reason) -> None:
    if reason is Reason.STALE_ATTEMPT:
        owner.offer()
    request = replace(REQUEST, **{"early": True, **change})
    async with asyncio.timeout(20.0):
        await owner.serving.until_begun(request)
    assert owner.refusal(request) is reason
