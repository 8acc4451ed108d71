"""One read of a pool's pages by a peer, layer by layer, perhaps while the later layers are still being computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch

from common.clock import Clock
from common.errors import WireError
from common.transport.memory_run import MemoryRun
from common.worker.kv_staging import Fence, KvStaging, StagingBuffer
from common.worker.page_memory import page_memory


class LayerProgress:
    """How much of one prefill is computed, and since when: layers, then what its own step revealed. Event loop only."""

    def __init__(self, layers: int, clock: Clock) -> None:
        self._clock = clock
        self._computed_at_s: float | None = None
        self._reached = [asyncio.Event() for _ in range(layers)]
        self._known = 0
        self._fences: list[Fence] = [None] * layers
        self._first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def note_layer(self, layer: int, fence: Fence) -> None:
        """That layer and all before it are in the pool, or will be at `fence`."""
        for index in range(self._known, layer + 1):
            self._fences[index] = fence
            self._reached[index].set()
        self._known = layer + 1
        if layer == len(self._reached) - 1:
            self._computed_at_s = self._clock.now()

    def note_layers(self) -> None:
        """Every layer is in the pool."""
        for reached in self._reached:
            reached.set()
        if self._computed_at_s is None:
            self._computed_at_s = self._clock.now()

    def computed_ago_s(self) -> float:
        """Seconds since every layer is in the pool."""
        assert self._computed_at_s is not None, "asked before the last layer"
        return self._clock.now() - self._computed_at_s

    def note_first(self, first: bytes) -> None:
        """What the prefill's own step revealed, as bytes for the reader."""
        if not self._first.done():
            self._first.set_result(first)

    @property
    def complete(self) -> bool:
        """Whether all of it is known: the layers, and what the prefill's own step revealed."""
        return self._computed_at_s is not None and self._first.done()

    async def wait_layer(self, layer: int) -> Fence:
        """Return once the layer is in the pool but for the fence."""
        await self._reached[layer].wait()
        return self._fences[layer]

    async def wait_first(self) -> bytes:
        """Return once the prefill's own step is known."""
        return await asyncio.shield(self._first)


class PoolLease:
    """`KvReadLease` over pages of a pool; made by `KvServing.open_read`.

    Scattered pages are staged in `window_layers` buffers in turn, unless a reader takes them out of `memory` itself.
    """

    def __init__(
        self,
        *,
        staging: KvStaging,
        page_ids: Sequence[int],
        progress: LayerProgress,
        check: Callable[[], None],
        on_closed: Callable[[bool], None],
    ) -> None:
        self.check = check
        self._staging = staging
        self._page_ids = page_ids
        self._progress = progress
        self._on_closed = on_closed
        self._revoked: asyncio.Future[WireError] = asyncio.get_running_loop().create_future()
        self._closed = False
        self._buffers: list[StagingBuffer] = []
        self._ready: tuple[int, Sequence[memoryview]] | None = None
        self._in_place = staging.in_place(page_ids)
        self.layers = staging.parts(len(page_ids))
        self.window_layers = self.layers if self._in_place else staging.staged_parts(len(page_ids))

    def in_runs(self) -> None:
        """See `KvReadLease.in_runs`."""
        if not self._in_place and self._staging.in_runs(self._page_ids):
            self._in_place = True
            self.window_layers = self.layers

    @property
    def complete(self) -> bool:
        """See `KvReadLease.complete`."""
        return self._progress.complete

    async def wait_layer(self, layer: int) -> None:
        """Return once the layer is computed and within reach."""
        layers = self._staging.layers_of(layer, len(self._page_ids))
        fence = await self._progress.wait_layer(layers[-1])
        if self._in_place:
            self._ready = (layer, self._staging.pool.read_pages(self._page_ids, layers))
            return
        self.check()
        if not self._buffers:
            self._take_buffers()
        buffer = self._buffers[layer % self.window_layers]
        await self._staging.load(layers, self._index, buffer, fence)
        self._ready = (layer, [buffer.view])

    def views(self, layer: int) -> Sequence[memoryview]:
        """See `KvReadLease.views`."""
        assert not self._closed and self._ready is not None and self._ready[0] == layer, f"layer {layer} is not ready"
        return self._ready[1]

    async def memory(self, layer: int) -> MemoryRun:
        """See `KvReadLease.memory`."""
        layers = self._staging.layers_of(layer, len(self._page_ids))
        await self._progress.wait_layer(layers[-1])
        assert not self._closed
        return page_memory(self._staging.pool, self._page_ids, layers)

    def _take_buffers(self) -> None:
        self._index = torch.tensor(self._page_ids, dtype=torch.int64)
        self._buffers = [self._staging.take(len(self._page_ids)) for _ in range(self.window_layers)]

    async def trailer(self) -> bytes:
        """What the prefill's own step revealed, once it is known."""
        return await self._progress.wait_first()

    def computed_ago_s(self) -> float:
        """See `KvReadLease.computed_ago_s`."""
        return self._progress.computed_ago_s()

    @property
    def revoked(self) -> asyncio.Future[WireError]:
        """See `KvReadLease.revoked`."""
        return self._revoked

    def revoke(self, error: WireError) -> None:
        """Take the pages back: whoever awaits `revoked` stops sending."""
        if not self._revoked.done():
            self._revoked.set_result(error)

    def close(self, *, delivered: bool) -> None:
        """See `KvReadLease.close`."""
        assert not self._closed, "a lease is closed once"
        self._closed = True
        self._ready = None
        for buffer in self._buffers:
            self._staging.give_back(buffer)
        self._on_closed(delivered)
