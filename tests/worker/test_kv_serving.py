"""Retained pages on loan: who gets them, when they are refused, what the worker core hears of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from common.clock import ManualClock
from common.core.ids import WorkerId, WorkerLife
from common.engine.kv_pool import KvPool
from common.errors import Reason, WireError
from common.transport.base import KvTransport
from common.transport.memory_run import MemoryRun
from common.transport.tcp import TcpTransport
from common.worker import kv_staging
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging, StagingBuffer
from common.worker.pool_sink import PoolSink
from tests.worker.kv_owner import (
    ATTEMPT,
    CANVAS_TOKENS,
    FIRST,
    LAYOUT,
    LEASE_S,
    LIFE,
    OWNER_PAGES,
    PAGES,
    READER_PAGES,
    REQUEST,
    Owner,
    handle,
    random_pool,
)

SIDE_BY_SIDE = (6, 7, 8, 9, 10)


@pytest.mark.parametrize("owner_pages", [OWNER_PAGES, SIDE_BY_SIDE])
@pytest.mark.parametrize("reader_pages", [READER_PAGES, SIDE_BY_SIDE])
@pytest.mark.parametrize("limits", [{}, {"INLINE_BYTES": 0}, {"RUN_BYTES": 1}], ids=["", "beside", "in place"])
async def test_pages_move_between_pools(
    owner: Owner, transport: KvTransport, owner_pages, reader_pages, limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scattered or side by side, copied on the loop, beside it or not: the same bytes, and no other page changes."""
    for name, limit in limits.items():
        monkeypatch.setattr(kv_staging, name, limit)
    owner.serving.offer(ATTEMPT, owner_pages, CANVAS_TOKENS, LEASE_S)
    owner.serving.first_revealed(ATTEMPT, FIRST)
    reader = random_pool(2)
    before = reader.tensor.clone()
    address = await transport.listen("127.0.0.1", owner.serving)
    for _ in range(2):
        reader.tensor.copy_(before)
        owner.idle.clear()
        with PoolSink(KvStaging(reader), reader_pages) as sink:
            fetched = await transport.fetch(handle=handle(address, transport), sink=sink, timeout_s=20.0)
        await owner.idle.wait()
        others = [page for page in range(PAGES) if page not in reader_pages]
        assert torch.equal(reader.tensor[:, :, list(reader_pages)], owner.pool.tensor[:, :, list(owner_pages)])
        assert torch.equal(reader.tensor[:, :, others], before[:, :, others])
        assert (fetched.transfer.transfer_bytes, fetched.trailer) == (LAYOUT.block_bytes(len(OWNER_PAGES)), FIRST)
    assert owner.log == [f"{what} {ATTEMPT}" for what in ("started", "ended", "delivered")] * 2


async def test_refusals(owner: Owner) -> None:
    assert owner.refusal() is Reason.KV_NOT_FOUND
    owner.offer(replace(ATTEMPT, attempt=2))
    assert owner.refusal() is Reason.STALE_ATTEMPT
    assert owner.refusal(replace(REQUEST, attempt=replace(ATTEMPT, attempt=3))) is Reason.KV_NOT_FOUND
    owner.offer()
    assert owner.refusal(replace(REQUEST, owner=WorkerLife(LIFE.worker_id, 4))) is Reason.STALE_INCARNATION
    assert owner.refusal(replace(REQUEST, owner=WorkerLife(LIFE.worker_id, 6))) is Reason.STALE_INCARNATION
    assert owner.refusal(replace(REQUEST, owner=WorkerLife(WorkerId("p1"), 5))) is Reason.STALE_INCARNATION
    assert owner.refusal(replace(REQUEST, layout_fingerprint="other")) is Reason.LAYOUT_MISMATCH
    assert owner.refusal(replace(REQUEST, pages=4)) is Reason.LAYOUT_MISMATCH
    owner.clock.advance(LEASE_S)
    assert owner.refusal() is Reason.KV_LEASE_EXPIRED
    owner.serving.withdraw(ATTEMPT)
    owner.serving.withdraw(replace(ATTEMPT, attempt=2))
    assert owner.refusal() is Reason.KV_NOT_FOUND


async def test_it_says_whether_somebody_reads_what_is_still_being_computed(owner: Owner) -> None:
    serving = owner.serving
    serving.announce(ATTEMPT, OWNER_PAGES)
    assert not serving.is_read_early
    gone, stays = serving.open_read(REQUEST), serving.open_read(REQUEST)
    assert serving.is_read_early
    gone.close(delivered=False)
    assert serving.is_read_early
    serving.offer(ATTEMPT, OWNER_PAGES, CANVAS_TOKENS, LEASE_S)
    assert not serving.is_read_early, "all is computed"
    stays.close(delivered=False)
    serving.withdraw(ATTEMPT)


def _expire(owner: Owner) -> None:
    owner.clock.advance(LEASE_S)


def _end_life(owner: Owner) -> None:
    owner.life = WorkerLife(LIFE.worker_id, 6)


def _withdraw(owner: Owner) -> None:
    owner.serving.withdraw(ATTEMPT)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_expire, Reason.KV_LEASE_EXPIRED),
        (_end_life, Reason.STALE_INCARNATION),
        (_withdraw, Reason.KV_NOT_FOUND),
    ],
)
async def test_every_send_is_checked_anew(owner: Owner, change, reason: Reason) -> None:
    owner.offer()
    lease = owner.serving.open_read(REQUEST)
    lease.check()
    change(owner)
    with pytest.raises(WireError) as caught:
        lease.check()
    assert caught.value.reason is reason
    lease.close(delivered=False)
    assert owner.log == [f"started {ATTEMPT}", f"ended {ATTEMPT}"]


async def test_an_old_lease_does_not_pass_for_a_new_offer_of_the_same_attempt(owner: Owner) -> None:
    owner.offer()
    lease = owner.serving.open_read(REQUEST)
    owner.serving.withdraw(ATTEMPT)
    owner.offer()
    with pytest.raises(WireError) as caught:
        lease.check()
    assert caught.value.reason is Reason.KV_NOT_FOUND
    lease.close(delivered=False)
    owner.serving.open_read(REQUEST).close(delivered=False)


async def test_withdrawing_aborts_a_send_whose_reader_takes_nothing() -> None:
    """A reader that connects, asks and then sleeps: the pages come back at the owner's word, not at a timeout."""
    big = replace(LAYOUT, page_size_tokens=1 << 18)
    owner = Owner(pool=KvPool(layout=big, num_pages=1, device=torch.device("cpu")))
    owner.serving.offer(ATTEMPT, (0,), 1 << 18, LEASE_S)
    transport, reader = TcpTransport(), TcpTransport()
    address = await transport.listen("127.0.0.1", owner.serving)
    stuck = asyncio.Event()

    class StuckSink:
        layers = big.n_layers
        window_layers = 1
        in_host_memory = False
        in_long_runs = True

        def memory(self, layer: int) -> MemoryRun:
            raise AssertionError("it has none")

        def in_runs(self) -> None:
            pass

        def views(self, layer: int) -> Sequence[memoryview]:
            return [memoryview(bytearray(big.page_bytes_per_layer))]

        async def complete(self, layer: int) -> None:
            stuck.set()
            await asyncio.Event().wait()

    wanted = replace(handle(address, transport), layout_fingerprint=big.fingerprint, pages=1)
    fetch = asyncio.create_task(reader.fetch(handle=wanted, sink=StuckSink(), timeout_s=60.0))
    async with asyncio.timeout(20.0):
        await stuck.wait()
        assert owner.log == [f"started {ATTEMPT}"]
        owner.serving.withdraw(ATTEMPT)
        await owner.idle.wait()
    assert owner.log == [f"started {ATTEMPT}", f"ended {ATTEMPT}"]
    await reader.aclose()
    with pytest.raises(WireError):
        await fetch
    await transport.aclose()


async def test_delivery_may_withdraw_the_offer_and_end_a_second_send() -> None:
    """The worker core answers a delivery with ForgetKv, within the callback."""
    log: list[str] = []
    serving = KvServing(
        staging=KvStaging(random_pool(1)),
        clock=ManualClock(),
        life=lambda: LIFE,
        on_send_started=lambda _: log.append("started"),
        on_send_ended=lambda _: log.append("ended"),
        on_delivered=lambda attempt: serving.withdraw(attempt),
    )
    serving.offer(ATTEMPT, OWNER_PAGES, CANVAS_TOKENS, LEASE_S)
    first, second = serving.open_read(REQUEST), serving.open_read(REQUEST)
    first.close(delivered=True)
    assert (await second.revoked).reason is Reason.KV_NOT_FOUND
    second.close(delivered=False)
    assert log == ["started", "started", "ended", "ended"]


async def test_layers_are_lent_in_wire_order_and_not_after_the_end(owner: Owner) -> None:
    owner.offer()
    lease = owner.serving.open_read(REQUEST)
    assert lease.layers == LAYOUT.n_layers
    for layer in range(lease.layers):
        await lease.wait_layer(layer)
        pages = owner.pool.tensor[layer][:, list(OWNER_PAGES)]
        assert b"".join(lease.views(layer)) == pages.contiguous().view(torch.uint8).numpy().tobytes()
    lease.close(delivered=False)
    with pytest.raises(AssertionError):
        lease.views(lease.layers - 1)
    with pytest.raises(AssertionError):
        lease.close(delivered=False)


@pytest.mark.parametrize(("pages", "runs"), [(SIDE_BY_SIDE, 2), (READER_PAGES, 6)])
async def test_long_runs_are_not_staged_for_who_takes_runs(
    owner: Owner, pages, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K and V of a layer are a run each, where pages lie side by side."""
    page_bytes = LAYOUT.page_bytes_per_layer // 2
    monkeypatch.setattr(kv_staging, "RUN_BYTES", len(pages) * page_bytes * 2 // runs)
    owner.serving.offer(ATTEMPT, pages, CANVAS_TOKENS, LEASE_S)
    for in_runs in (False, True):
        lease = owner.serving.open_read(REQUEST)
        with PoolSink(KvStaging(owner.pool), pages) as sink:
            if in_runs:
                lease.in_runs()
                sink.in_runs()
            await lease.wait_layer(0)
            assert len(lease.views(0)) == len(sink.views(0)) == (runs if in_runs else 1)
            assert lease.window_layers == sink.window_layers
        lease.close(delivered=False)


async def test_a_cancelled_copy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a cancelled fetch are reused at once, so a copy into them must be over by then."""
    monkeypatch.setattr(kv_staging, "INLINE_BYTES", 0)
    loop = asyncio.get_running_loop()
    begun, finish = asyncio.Event(), threading.Event()
    reader = random_pool(2)
    written: list[object] = []

    class SlowStaging(KvStaging):
        def _store(self, layers: range, page_ids: torch.Tensor, buffer: StagingBuffer) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert finish.wait(20.0)
            written.extend(layers)

    with PoolSink(SlowStaging(reader), READER_PAGES) as sink:
        sink.views(0)
        completing = asyncio.create_task(sink.complete(0))
        await begun.wait()
        completing.cancel()
        await asyncio.sleep(0.05)
        still_copying = not completing.done()
        finish.set()
        with pytest.raises(asyncio.CancelledError):
            await completing
    assert still_copying and written == [0]
