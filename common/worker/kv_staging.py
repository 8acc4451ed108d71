"""Between a pool's pages and bytes in one piece: staging buffers, and the copies that fill and empty them.

Pages that lie side by side in host memory need none of this. Scattered ones are gathered (or scattered) by one tensor
operation for each layer, not page by page; pages of an accelerator go through pinned host memory, on a stream of their
own, and the host waits for that stream before bytes are sent and before received ones count as here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from common.engine.kv_pool import KvPool
from common.transport.racing import outlive

T = TypeVar("T")

INLINE_BYTES = 4 << 20
"""Copies up to this run on the event loop (under a millisecond); longer ones would hold it up, and run beside it."""

KEPT_BYTES = 256 << 20
"""Staging memory kept for the next transfers: whoever registers or pins it need do so only once."""

WINDOW_BYTES = 16 << 20
"""Staging memory of one transfer, unless two layers need more: enough to keep a fast carrier busy."""

Fence = torch.cuda.Event | None
"""When work queued on an accelerator is done; None on a CPU, where it is done when its call returns."""


class StagingBuffer:
    """Host memory for one layer of some pages, `pages` [2, pages, page bytes] uint8, and its bytes as `view`."""

    def __init__(self, memory: Tensor, pool: KvPool, pages: int) -> None:
        layer_bytes = pages * pool.layout.page_bytes_per_layer
        self.memory = memory
        self.pages = memory[:layer_bytes].view(2, pages, layer_bytes // pages // 2)
        self.view: memoryview = memory[:layer_bytes].numpy().data


class KvStaging:
    """The staging of one pool. Buffers are taken and given back on the event loop."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        layout = pool.layout
        self._pages = (
            pool.tensor.view(-1)
            .view(torch.uint8)
            .view(layout.n_layers, 2, pool.num_pages, layout.page_bytes_per_layer // 2)
        )
        self._on_host = pool.tensor.device.type == "cpu"
        self._stream = None if self._on_host else _new_stream(pool.tensor.device)
        self._free: dict[int, list[Tensor]] = defaultdict(list)
        self._free_bytes = 0

    @property
    def pool(self) -> KvPool:
        """The pool whose pages are copied."""
        return self._pool

    def in_place(self, page_ids: Sequence[int]) -> bool:
        """Whether these pages can be sent from, and received into, where they lie."""
        return self._on_host and list(page_ids) == list(range(page_ids[0], page_ids[0] + len(page_ids)))

    def fence(self) -> Fence:
        """Marks what the calling thread has queued on the pool's device so far."""
        if self._on_host:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
        event.record(torch.cuda.current_stream(self._pool.tensor.device))
        return event

    def window_layers(self, page_ids: Sequence[int]) -> int:
        """Layers of these pages that may be on their way at once: all where they lie, else what `WINDOW_BYTES` hold."""
        n_layers = self._pool.layout.n_layers
        if self.in_place(page_ids):
            return n_layers
        return min(max(2, WINDOW_BYTES // (len(page_ids) * self._pool.layout.page_bytes_per_layer)), n_layers)

    def take(self, pages: int) -> StagingBuffer:
        """A buffer for one layer of `pages` pages."""
        needed_bytes = pages * self._pool.layout.page_bytes_per_layer
        size_bytes = 1 << (needed_bytes - 1).bit_length()
        if kept := self._free[size_bytes]:
            self._free_bytes -= size_bytes
            memory = kept.pop()
        else:
            memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=not self._on_host)
        return StagingBuffer(memory, self._pool, pages)

    def give_back(self, buffer: StagingBuffer) -> None:
        """The buffer is not used any more."""
        size_bytes = buffer.memory.numel()
        if self._free_bytes + size_bytes <= KEPT_BYTES:
            self._free[size_bytes].append(buffer.memory)
            self._free_bytes += size_bytes

    async def load(self, layer: int, page_ids: Tensor, buffer: StagingBuffer, fence: Fence) -> None:
        """Copy one layer of the pages (int64 [pages], on the pool's device) into `buffer`, after `fence`."""
        await self._copy(buffer, lambda: self._load(layer, page_ids, buffer, fence))

    async def store(self, layer: int, page_ids: Tensor, buffer: StagingBuffer) -> None:
        """Copy `buffer` into one layer of the pages."""
        await self._copy(buffer, lambda: self._store(layer, page_ids, buffer))

    def _load(self, layer: int, page_ids: Tensor, buffer: StagingBuffer, fence: Fence) -> None:
        source = self._pages[layer]
        if self._stream is None:
            torch.index_select(source, 1, page_ids, out=buffer.pages)
            return
        with torch.cuda.stream(self._stream):
            if fence is None:
                self._stream.wait_stream(torch.cuda.default_stream(source.device))
            else:
                self._stream.wait_event(fence)
            buffer.pages.copy_(source.index_select(1, page_ids), non_blocking=True)
        self._stream.synchronize()

    def _store(self, layer: int, page_ids: Tensor, buffer: StagingBuffer) -> None:
        target = self._pages[layer]
        if self._stream is None:
            # Page by page inside numpy; torch's index_copy_ goes element by element (48 and 3.8 GB/s, measured).
            target.numpy()[:, page_ids.numpy()] = buffer.pages.numpy()
            return
        with torch.cuda.stream(self._stream):
            target.index_copy_(1, page_ids, buffer.pages.to(target.device, non_blocking=True))
        self._stream.synchronize()

    async def _copy(self, buffer: StagingBuffer, copy: Callable[[], T]) -> T:
        """Result of `copy`, beside the event loop if it is long. A cancellation waits for its end: the pages may be
        reused right after it."""
        if self._on_host and len(buffer.view) <= INLINE_BYTES:
            return copy()
        copying = asyncio.get_running_loop().run_in_executor(None, copy)
        await outlive([copying])
        return copying.result()


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
