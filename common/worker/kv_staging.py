"""Between a pool's pages and bytes in one piece: staging buffers, and the copies that fill and empty them.

Pages that lie in long enough runs of host memory need none of this. Others are gathered (or scattered) by one
array operation for each part of the transfer, not page by page. Pages of an accelerator go through pinned host memory
on a stream of their own; the host waits for that stream before bytes are sent, and before received ones count as here.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from common.engine.kv_pool import KvPool, page_runs
from common.racing import outlive

T = TypeVar("T")

INLINE_BYTES = 2 << 20
"""Copies up to this run on the event loop (half a millisecond); longer ones would hold it up, and run beside it."""

KEPT_BYTES = 256 << 20
"""Staging memory kept for the next transfers: whoever registers or pins it need do so only once."""

PART_BYTES = 2 << 20
"""Longest part of several layers; layers from this on that lie in two long runs are not staged."""

RUN_BYTES = 16 << 10
"""Average run from which on a carrier that takes runs needs no staging: views of them cost less than a copy."""

LONG_RUN_BYTES = 64 << 10
"""Average run from which on a read of each costs less than gathering and scattering."""

MIN_PARTS = 16
"""Parts of one transfer at least, layers permitting: only the last is not hidden by the prefill that computes it."""

WINDOW_BYTES = 16 << 20
"""Staging memory of one transfer, unless two parts need more: enough to keep a fast carrier busy."""

Fence = torch.cuda.Event | None
"""When work queued on an accelerator is done; None on a CPU, where it is done when its call returns."""


class StagingBuffer:
    """Host memory for one part of some pages: `pages` [layers, 2, pages, page bytes] uint8, as numpy's `array`,
    and its bytes as `view`."""

    def __init__(self, memory: Tensor, shape: tuple[int, int, int, int]) -> None:
        used = memory[: math.prod(shape)]
        self.memory = memory
        self.pages = used.view(shape)
        self.array = self.pages.numpy()
        self.view: memoryview = used.numpy().data


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
        self._array = self._pages.numpy() if self._on_host else None
        self._stream = None if self._on_host else _new_stream(pool.tensor.device)
        self._free: dict[int, list[StagingBuffer]] = defaultdict(list)
        self._free_bytes = 0
        # By number of pages: asked for many times in each transfer.
        self._layers_per_part: dict[int, int] = {}

    @property
    def pool(self) -> KvPool:
        """The pool whose pages are copied."""
        return self._pool

    @property
    def on_host(self) -> bool:
        """Whether the pool is in host memory."""
        return self._on_host

    def layers_per_part(self, pages: int) -> int:
        """Layers that travel together: few enough for `PART_BYTES` and `MIN_PARTS`, the same for every part.

        A frame costs some 100 us of Python at its two ends, whatever its size, and small layers would drown in that.
        """
        if (known := self._layers_per_part.get(pages)) is None:
            known = self._layers_per_part[pages] = self._fitting_layers(pages)
        return known

    def _fitting_layers(self, pages: int) -> int:
        layout = self._pool.layout
        limit_bytes = min(PART_BYTES, layout.block_bytes(pages) // MIN_PARTS)
        most = max(1, limit_bytes // (pages * layout.page_bytes_per_layer))
        return max(number for number in range(1, most + 1) if layout.n_layers % number == 0)

    def layers_of(self, part: int, pages: int) -> range:
        """The layers of that part."""
        number = self.layers_per_part(pages)
        return range(part * number, (part + 1) * number)

    def in_place(self, page_ids: Sequence[int]) -> bool:
        """Whether these pages are sent from, and received into, where they lie: side by side, and in long runs."""
        if not self._on_host or len(page_ids) * self._pool.layout.page_bytes_per_layer < PART_BYTES:
            return False
        return list(page_ids) == list(range(page_ids[0], page_ids[0] + len(page_ids)))

    def in_runs(self, page_ids: Sequence[int]) -> bool:
        """The same for a carrier that takes many runs as gladly as one: wherever runs are long on average."""
        return self._on_host and self._average_run_bytes(page_ids) >= RUN_BYTES

    def in_long_runs(self, page_ids: Sequence[int]) -> bool:
        """The same for a carrier that reads each run by itself."""
        return self._on_host and self._average_run_bytes(page_ids) >= LONG_RUN_BYTES

    def _average_run_bytes(self, page_ids: Sequence[int]) -> float:
        firsts, _ = page_runs(tuple(page_ids))
        return len(page_ids) * self._pool.layout.page_bytes_per_layer / 2 / len(firsts)

    def fence(self) -> Fence:
        """Marks what the calling thread has queued on the pool's device so far."""
        if self._on_host:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
        event.record(torch.cuda.current_stream(self._pool.tensor.device))
        return event

    def parts(self, pages: int) -> int:
        """Parts of a transfer of that many pages."""
        return self._pool.layout.n_layers // self.layers_per_part(pages)

    def staged_parts(self, pages: int) -> int:
        """Parts of staged pages that may be on their way at once: what `WINDOW_BYTES` hold."""
        return min(max(2, WINDOW_BYTES // self._part_bytes(pages)), self.parts(pages))

    def take(self, pages: int) -> StagingBuffer:
        """A buffer for one part of `pages` pages."""
        size_bytes = 1 << (self._part_bytes(pages) - 1).bit_length()
        shape = (self.layers_per_part(pages), 2, pages, self._pages.shape[-1])
        if kept := self._free[size_bytes]:
            self._free_bytes -= size_bytes
            buffer = kept.pop()
            return buffer if buffer.pages.shape == shape else StagingBuffer(buffer.memory, shape)
        return StagingBuffer(torch.empty(size_bytes, dtype=torch.uint8, pin_memory=not self._on_host), shape)

    def give_back(self, buffer: StagingBuffer) -> None:
        """The buffer is not used any more."""
        size_bytes = buffer.memory.numel()
        if self._free_bytes + size_bytes <= KEPT_BYTES:
            self._free[size_bytes].append(buffer)
            self._free_bytes += size_bytes

    async def load(self, layers: range, page_ids: Tensor, buffer: StagingBuffer, fence: Fence) -> None:
        """Copy those layers of the pages (int64 [pages], in host memory) into `buffer`, after `fence`."""
        await self._copy(buffer, lambda: self._load(layers, page_ids, buffer, fence))

    async def store(self, layers: range, page_ids: Tensor, buffer: StagingBuffer) -> None:
        """Copy `buffer` into those layers of the pages."""
        await self._copy(buffer, lambda: self._store(layers, page_ids, buffer))

    def _part_bytes(self, pages: int) -> int:
        return pages * self._pool.layout.page_bytes_per_layer * self.layers_per_part(pages)

    def _load(self, layers: range, page_ids: Tensor, buffer: StagingBuffer, fence: Fence) -> None:
        if self._array is not None:
            source = self._array[layers.start : layers.stop]
            np.take(source, page_ids.numpy(), axis=2, out=buffer.array, mode="clip")
            return
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            if fence is None:
                self._stream.wait_stream(torch.cuda.default_stream(self._pages.device))
            else:
                self._stream.wait_event(fence)
            pages = self._pages[layers.start : layers.stop].index_select(2, self._on_device(page_ids))
            buffer.pages.copy_(pages, non_blocking=True)
        self._stream.synchronize()

    def _store(self, layers: range, page_ids: Tensor, buffer: StagingBuffer) -> None:
        if self._array is not None:
            # Page by page inside numpy; torch's index_copy_ goes element by element (48 and 3.8 GB/s, measured).
            self._array[layers.start : layers.stop][:, :, page_ids.numpy()] = buffer.array
            return
        assert self._stream is not None
        target = self._pages[layers.start : layers.stop]
        with torch.cuda.stream(self._stream):
            pages = buffer.pages.to(target.device, non_blocking=True)
            target.index_copy_(2, self._on_device(page_ids), pages)
        self._stream.synchronize()

    def _on_device(self, page_ids: Tensor) -> Tensor:
        """`page_ids` there; called on this staging's stream: elsewhere the copy would wait for a forward to end."""
        return page_ids.to(self._pages.device, non_blocking=True)

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
