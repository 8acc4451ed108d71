"""The worker's pages as the KV data plane sees them: what is on offer (`KvServing`), and where to put it (`PoolSink`).

Both hand out the pool's own memory on a CPU. On an accelerator each layer is staged in host memory, off the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from common.clock import Clock
from common.core.ids import BlockAttempt, WorkerLife
from common.engine.kv_pool import KvPool
from common.errors import Reason, WireError
from common.transport.base import KvReadRequest
from common.transport.racing import outlive

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class _Offer:
    """Retained pages of one attempt; `lease_deadline_s` on the serving's clock."""

    attempt: BlockAttempt
    page_ids: tuple[int, ...]
    canvas_tokens: int
    lease_deadline_s: float
    sends: set[PoolLease] = field(default_factory=set)


class KvServing:
    """Lends retained pages to the transport (`KvProvider`) and tells what becomes of them. Event loop only.

    `life` is the worker's present life. For each send: `on_send_started` before its pages are read, `on_send_ended`
    when they are read no more, then `on_delivered` if the reader has acknowledged them all. The callbacks may call
    `withdraw`.
    """

    def __init__(
        self,
        *,
        pool: KvPool,
        clock: Clock,
        life: Callable[[], WorkerLife],
        on_send_started: Callable[[BlockAttempt], None],
        on_send_ended: Callable[[BlockAttempt], None],
        on_delivered: Callable[[BlockAttempt], None],
    ) -> None:
        self._pool = pool
        self._layout_fingerprint = pool.layout.fingerprint
        self._clock = clock
        self._life = life
        self._on_send_started = on_send_started
        self._on_send_ended = on_send_ended
        self._on_delivered = on_delivered
        self._offers: dict[BlockAttempt, _Offer] = {}

    def offer(
        self, attempt: BlockAttempt, page_ids: Sequence[int], canvas_tokens: int, lease_deadline_s: float
    ) -> None:
        """Let readers have these pages until `lease_deadline_s` (on the clock) or `withdraw`."""
        assert attempt not in self._offers, f"{attempt} is on offer already"
        assert len(page_ids) == self._pool.pages_for(canvas_tokens), f"{len(page_ids)} pages for {canvas_tokens} tokens"
        self._offers[attempt] = _Offer(
            attempt=attempt,
            page_ids=tuple(page_ids),
            canvas_tokens=canvas_tokens,
            lease_deadline_s=lease_deadline_s,
        )

    def withdraw(self, attempt: BlockAttempt) -> None:
        """End the offer. Running sends are aborted: `on_send_ended` follows for each when it has stopped."""
        offer = self._offers.pop(attempt, None)
        assert offer is not None, f"{attempt} is not on offer"
        for lease in offer.sends:
            lease.revoke(WireError(Reason.KV_NOT_FOUND, f"K/V of {attempt} was withdrawn"))

    def open_read(self, request: KvReadRequest) -> PoolLease:
        """See `KvProvider.open_read`."""
        offer = self._offers.get(request.attempt)
        self._check(request, offer)
        assert offer is not None, "the check refuses what is not on offer"
        lease = PoolLease(
            pool=self._pool,
            page_ids=offer.page_ids,
            check=lambda: self._check(request, offer),
            on_closed=lambda delivered: self._send_closed(offer, lease, delivered),
        )
        offer.sends.add(lease)
        self._on_send_started(request.attempt)
        return lease

    def _check(self, request: KvReadRequest, offer: _Offer | None) -> None:
        """Raise `WireError` unless `request` may have the pages of `offer` at this moment."""
        life = self._life()
        if request.owner != life:
            raise WireError(Reason.STALE_INCARNATION, f"{life.worker_id} lives life {life.incarnation} now")
        if offer is None or self._offers.get(request.attempt) is not offer:
            raise self._absence(request.attempt)
        if request.layout_fingerprint != self._layout_fingerprint:
            raise WireError(Reason.LAYOUT_MISMATCH, "reader and owner keep K/V in different layouts")
        if request.pages != len(offer.page_ids):
            raise WireError(Reason.LAYOUT_MISMATCH, f"owner keeps {len(offer.page_ids)} pages, not {request.pages}")
        if self._clock.now() >= offer.lease_deadline_s:
            raise WireError(Reason.KV_LEASE_EXPIRED, f"the lease on K/V of {request.attempt} is over")

    def _absence(self, attempt: BlockAttempt) -> WireError:
        """Why there is no such offer: a newer attempt at the block is one answer."""
        for held in self._offers:
            if (held.request_id, held.block) == (attempt.request_id, attempt.block) and held.attempt > attempt.attempt:
                return WireError(Reason.STALE_ATTEMPT, f"{held} has replaced {attempt}")
        return WireError(Reason.KV_NOT_FOUND, f"no K/V of {attempt} here")

    def _send_closed(self, offer: _Offer, lease: PoolLease, delivered: bool) -> None:
        offer.sends.remove(lease)
        self._on_send_ended(offer.attempt)
        if delivered:
            self._on_delivered(offer.attempt)


class PoolLease:
    """`KvReadLease` over pages of a pool; made by `KvServing.open_read`."""

    def __init__(
        self,
        *,
        pool: KvPool,
        page_ids: Sequence[int],
        check: Callable[[], None],
        on_closed: Callable[[bool], None],
    ) -> None:
        self._pool = pool
        self._page_ids = page_ids
        self._on_closed = on_closed
        self._revoked: asyncio.Future[WireError] = asyncio.get_running_loop().create_future()
        self._closed = False
        self._ready: tuple[int, list[memoryview]] | None = None
        self.check = check

    @property
    def layers(self) -> int:
        """Layers of the pool."""
        return self._pool.layout.n_layers

    async def wait_layer(self, layer: int) -> None:
        """Bring the layer within reach; a prefill is offered whole, so there is nothing else to wait for."""
        views = await _with_pool(self._pool, lambda: self._pool.read_pages(self._page_ids, range(layer, layer + 1)))
        self._ready = (layer, views)

    def views(self, layer: int) -> Sequence[memoryview]:
        """See `KvReadLease.views`."""
        assert not self._closed and self._ready is not None and self._ready[0] == layer, f"layer {layer} is not ready"
        return self._ready[1]

    async def revoked(self) -> WireError:
        """See `KvReadLease.revoked`."""
        return await asyncio.shield(self._revoked)

    def revoke(self, error: WireError) -> None:
        """Take the pages back: whoever awaits `revoked` stops sending."""
        if not self._revoked.done():
            self._revoked.set_result(error)

    def close(self, *, delivered: bool) -> None:
        """See `KvReadLease.close`."""
        assert not self._closed, "a lease is closed once"
        self._closed = True
        self._ready = None
        self._on_closed(delivered)


class PoolSink:
    """`KvSink` over pages of a pool, which must stay the caller's until the fetch has ended."""

    def __init__(self, pool: KvPool, page_ids: Sequence[int]) -> None:
        self._pool = pool
        self._page_ids = tuple(page_ids)
        self._buffers: list[memoryview] = []

    @property
    def layers(self) -> int:
        """Layers of the pool."""
        return self._pool.layout.n_layers

    def views(self, layer: int) -> Sequence[memoryview]:
        """See `KvSink.views`."""
        self._buffers = self._pool.writable_runs(self._page_ids, range(layer, layer + 1))
        return self._buffers

    async def complete(self, layer: int) -> None:
        """See `KvSink.complete`."""
        pool, page_ids, buffers = self._pool, self._page_ids, self._buffers
        await _with_pool(pool, lambda: pool.commit_runs(page_ids, range(layer, layer + 1), buffers))


async def _with_pool(pool: KvPool, work: Callable[[], T]) -> T:
    """Result of `work`, which copies between device and host unless the pool is in host memory: then off the loop.

    A cancellation waits for the copy to end, for the pages may be reused right after it.
    """
    if _in_host_memory(pool):
        return work()
    copying = asyncio.get_running_loop().run_in_executor(None, work)
    await outlive([copying])
    return copying.result()


def _in_host_memory(pool: KvPool) -> bool:
    return pool.tensor.device.type == "cpu"
