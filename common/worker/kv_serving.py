"""The pages that a worker lends to peers: computed ones under lease, and ones that a prefill is still computing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.clock import Clock
from common.core.ids import BlockAttempt, WorkerLife
from common.errors import Reason, WireError
from common.transport.base import KvReadRequest
from common.worker.kv_staging import Fence, KvStaging
from common.worker.pool_lease import LayerProgress, PoolLease


@dataclass(slots=True, kw_only=True, eq=False)
class _Offer:
    """Pages of one attempt. `lease_deadline_s` is on the serving's clock; None while the prefill is running."""

    attempt: BlockAttempt
    page_ids: tuple[int, ...]
    progress: LayerProgress
    lease_deadline_s: float | None
    sends: set[PoolLease] = field(default_factory=set)


class KvServing:
    """Lends pages to the transport (`KvProvider`) and tells what becomes of them. Event loop only.

    An attempt is announced when its prefill starts (optional: then readers may come before it ends, and get each layer
    when it is computed), offered when the worker core retains its K/V, and withdrawn. Early readers may come before all
    that, and wait. `life` is the worker's present life. For each send: `on_send_started` before its pages are read,
    `on_send_ended` when they are read no more, then `on_delivered` if the reader has acknowledged them all. The
    callbacks may call `withdraw`.
    """

    def __init__(
        self,
        *,
        staging: KvStaging,
        clock: Clock,
        life: Callable[[], WorkerLife],
        on_send_started: Callable[[BlockAttempt], None],
        on_send_ended: Callable[[BlockAttempt], None],
        on_delivered: Callable[[BlockAttempt], None],
    ) -> None:
        self._staging = staging
        self._layout = staging.pool.layout
        self._layout_fingerprint = self._layout.fingerprint
        self._clock = clock
        self._life = life
        self._on_send_started = on_send_started
        self._on_send_ended = on_send_ended
        self._on_delivered = on_delivered
        self._offers: dict[BlockAttempt, _Offer] = {}
        self._waiting: dict[BlockAttempt, list[asyncio.Future[None]]] = {}
        self._is_read_early = False

    @property
    def is_read_early(self) -> bool:
        """Whether somebody reads what a prefill is still computing. Any thread may ask."""
        return self._is_read_early

    @property
    def life(self) -> WorkerLife:
        """See `KvProvider.life`."""
        return self._life()

    @property
    def in_host_memory(self) -> bool:
        """See `KvProvider.in_host_memory`."""
        return self._staging.on_host

    @property
    def announced(self) -> frozenset[BlockAttempt]:
        """Attempts whose prefill is running, as far as told here."""
        return frozenset(attempt for attempt, offer in self._offers.items() if offer.lease_deadline_s is None)

    @property
    def offered(self) -> frozenset[BlockAttempt]:
        """Attempts whose pages are all computed and may be had."""
        return frozenset(attempt for attempt, offer in self._offers.items() if offer.lease_deadline_s is not None)

    def announce(self, attempt: BlockAttempt, page_ids: Sequence[int]) -> None:
        """A prefill begins to write these pages: readers may come. Ends with `offer` or `retract`."""
        self._add(attempt, page_ids, None)

    def layer_computed(self, attempts: Sequence[BlockAttempt], layer: int, fence: Fence) -> None:
        """The announced `attempts` (others are passed over) are in the pool up to that layer, or will be at `fence`."""
        for attempt in attempts:
            if (offer := self._offers.get(attempt)) is not None and offer.lease_deadline_s is None:
                offer.progress.note_layer(layer, fence)

    def retract(self, attempts: Sequence[BlockAttempt]) -> None:
        """The prefill of `attempts` has ended: those that were announced and not offered since are not to be had."""
        for attempt in attempts:
            if (offer := self._offers.get(attempt)) is not None and offer.lease_deadline_s is None:
                self._remove(offer, f"K/V of {attempt} was not kept")

    def offer(
        self, attempt: BlockAttempt, page_ids: Sequence[int], canvas_tokens: int, lease_deadline_s: float
    ) -> None:
        """Let readers have these pages, all computed, until `lease_deadline_s` (on the clock) or `withdraw`."""
        assert len(page_ids) == self._staging.pool.pages_for(canvas_tokens), f"{len(page_ids)} pages: {canvas_tokens}"
        offer = self._offers.get(attempt) or self._add(attempt, page_ids, lease_deadline_s)
        assert offer.page_ids == tuple(page_ids), f"{attempt} was announced on other pages"
        assert offer.lease_deadline_s in (None, lease_deadline_s), f"{attempt} is on offer already"
        offer.lease_deadline_s = lease_deadline_s
        offer.progress.note_layers()
        self._look_for_early_readers()

    def first_revealed(self, attempt: BlockAttempt, first: bytes) -> None:
        """What the prefill's own step revealed: it follows the last layer. Readers of what is offered wait for it."""
        self._offers[attempt].progress.note_first(first)

    def withdraw(self, attempt: BlockAttempt) -> None:
        """End the offer. Running sends are aborted: `on_send_ended` follows for each when it has stopped."""
        offer = self._offers.get(attempt)
        assert offer is not None and offer.lease_deadline_s is not None, f"{attempt} is not on offer"
        self._remove(offer, f"K/V of {attempt} was withdrawn")

    def end_waits(self) -> None:
        """Another life has begun: whoever waits for a prefill of the former one hears so."""
        for attempt in tuple(self._waiting):
            self._wake(attempt)

    async def until_begun(self, request: KvReadRequest) -> None:
        """See `KvProvider.until_begun`. The scheduler ends a reader whose prefill will not come, or kept nothing."""
        if not request.early or self._refusal_of(request) is not Reason.KV_NOT_FOUND:
            return
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(request.attempt, [])
        waiting.append(begun)
        try:
            await begun
        finally:
            waiting.remove(begun)
            if not waiting and self._waiting.get(request.attempt) is waiting:
                del self._waiting[request.attempt]

    def open_read(self, request: KvReadRequest) -> PoolLease:
        """See `KvProvider.open_read`."""
        offer = self._offers.get(request.attempt)
        self._check(request, offer)
        assert offer is not None, "the check refuses what is not on offer"
        lease = PoolLease(
            staging=self._staging,
            page_ids=offer.page_ids,
            progress=offer.progress,
            check=lambda: self._check(request, offer),
            on_closed=lambda delivered: self._send_closed(offer, lease, delivered),
        )
        offer.sends.add(lease)
        self._look_for_early_readers()
        self._on_send_started(request.attempt)
        return lease

    def _add(self, attempt: BlockAttempt, page_ids: Sequence[int], lease_deadline_s: float | None) -> _Offer:
        assert attempt not in self._offers, f"{attempt} is on offer already"
        offer = self._offers[attempt] = _Offer(
            attempt=attempt,
            page_ids=tuple(page_ids),
            progress=LayerProgress(self._layout.n_layers, self._clock),
            lease_deadline_s=lease_deadline_s,
        )
        for awaited in tuple(self._waiting):
            same_block = (awaited.request_id, awaited.block) == (attempt.request_id, attempt.block)
            if same_block and awaited.attempt <= attempt.attempt:
                # A newer attempt tells those who wait for an older one that it will not come.
                self._wake(awaited)
        return offer

    def _wake(self, attempt: BlockAttempt) -> None:
        for begun in self._waiting.pop(attempt):
            if not begun.done():
                begun.set_result(None)

    def _refusal_of(self, request: KvReadRequest) -> Reason | None:
        try:
            self._check(request, self._offers.get(request.attempt))
        except WireError as error:
            return error.reason
        return None

    def _remove(self, offer: _Offer, why: str) -> None:
        del self._offers[offer.attempt]
        self._look_for_early_readers()
        for lease in offer.sends:
            lease.revoke(WireError(Reason.KV_NOT_FOUND, why))

    def _look_for_early_readers(self) -> None:
        self._is_read_early = any(offer.lease_deadline_s is None and offer.sends for offer in self._offers.values())

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
        if offer.lease_deadline_s is not None and self._clock.now() >= offer.lease_deadline_s:
            raise WireError(Reason.KV_LEASE_EXPIRED, f"the lease on K/V of {request.attempt} is over")

    def _absence(self, attempt: BlockAttempt) -> WireError:
        """Why there is no such offer: a newer attempt at the block is one answer."""
        for held in self._offers:
            if (held.request_id, held.block) == (attempt.request_id, attempt.block) and held.attempt > attempt.attempt:
                return WireError(Reason.STALE_ATTEMPT, f"{held} has replaced {attempt}")
        return WireError(Reason.KV_NOT_FOUND, f"no K/V of {attempt} here")

    def _send_closed(self, offer: _Offer, lease: PoolLease, delivered: bool) -> None:
        offer.sends.remove(lease)
        self._look_for_early_readers()
        self._on_send_ended(offer.attempt)
        if delivered:
            self._on_delivered(offer.attempt)
