"""The paged K/V cache of one device: one tensor, addressed by page id. Pages are owned elsewhere (worker core)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.core.kv_layout import KvLayout
from common.engine.huge_pages import ask_for_huge_pages
from common.errors import ConfigError

_KEYS, _VALUES = 0, 1


class KvPool:
    """Pages of K and V: `tensor` is [n_layers, 2, num_pages, page_size_tokens, n_kv_heads, head_dim].

    A *slot* is one position's place, page id * page_size_tokens + offset. Byte runs are in wire order: layer, K then V,
    page; neighbouring pages are joined.
    """

    def __init__(self, *, layout: KvLayout, num_pages: int, device: torch.device) -> None:
        """Allocate the pool; raises `ConfigError` when the device has no room for it."""
        if num_pages < 1:
            raise ConfigError(f"num_pages: must be at least 1, not {num_pages}")
        if layout.page_size_tokens < 1:
            raise ConfigError(f"page_size_tokens: must be at least 1, not {layout.page_size_tokens}")
        self.layout = layout
        self.num_pages = num_pages
        shape = (layout.n_layers, 2, num_pages, layout.page_size_tokens, layout.n_kv_heads, layout.head_dim)
        try:
            self.tensor = torch.empty(shape, dtype=getattr(torch, layout.dtype), device=device)
            if device.type == "cpu":
                ask_for_huge_pages(self.tensor)
            self.tensor.zero_()
        except RuntimeError:
            needed_bytes = layout.block_bytes(num_pages)
            raise ConfigError(f"num_pages: {num_pages} pages need {needed_bytes} bytes, {device} has not") from None
        self._slots = self.tensor.view(*shape[:2], num_pages * layout.page_size_tokens, *shape[4:])
        self._bytes = self.tensor.view(-1).view(torch.uint8)
        self._host_bytes = self._bytes.numpy().data if device.type == "cpu" else None

    @property
    def host_bytes(self) -> memoryview | None:
        """All of it as bytes in host memory; None on an accelerator."""
        return self._host_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.layout.n_layers * self.layout.page_bytes_per_layer

    def pages_for(self, canvas_tokens: int) -> int:
        """Pages that hold a canvas of that many positions."""
        return -(-canvas_tokens // self.layout.page_size_tokens)

    def slots_of(self, page_ids: Sequence[int], canvas_tokens: int) -> Tensor:
        """Slot of each canvas position: int64 [canvas_tokens] on the pool's device."""
        assert len(page_ids) >= self.pages_for(canvas_tokens), f"{len(page_ids)} pages for {canvas_tokens} tokens"
        assert len(set(page_ids)) == len(page_ids), f"a page is given twice: {page_ids}"
        assert all(0 <= page < self.num_pages for page in page_ids), f"page ids beyond {self.num_pages}: {page_ids}"
        size = self.layout.page_size_tokens
        pages = torch.tensor(list(page_ids), dtype=torch.int64)
        slots = (pages[:, None] * size + torch.arange(size)).view(-1)[:canvas_tokens]
        return slots.to(self.tensor.device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put K and V rows ([rows, n_kv_heads, head_dim]) into `slots` [rows] of one layer."""
        self._slots[layer, _KEYS].index_copy_(0, slots, keys)
        self._slots[layer, _VALUES].index_copy_(0, slots, values)

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of those slots only: two fresh [rows, n_kv_heads, head_dim]."""
        rows = self._slots[layer]
        return rows[_KEYS].index_select(0, slots), rows[_VALUES].index_select(0, slots)

    def byte_runs(self, page_ids: Sequence[int], layers: range) -> list[Tensor]:
        """Views (uint8, 1-D, contiguous, on the pool's device) of those pages, in wire order; nothing is copied."""
        return list(map(self._bytes.__getitem__, self._byte_slices(page_ids, layers)))

    def read_pages(self, page_ids: Sequence[int], layers: range) -> list[memoryview]:
        """Bytes of those pages in wire order: views of the pool itself on CPU, host copies on CUDA."""
        return self._host_runs(page_ids, layers)

    def writable_runs(self, page_ids: Sequence[int], layers: range) -> list[memoryview]:
        """Buffers to receive those pages in wire order: the pool itself on CPU, host staging on CUDA.

        The pages hold the bytes for certain only after `commit_runs` with the same arguments and these buffers.
        """
        return self._host_runs(page_ids, layers)

    def commit_runs(self, page_ids: Sequence[int], layers: range, buffers: Sequence[memoryview]) -> None:
        """Bring filled `writable_runs` buffers into the pool (nothing to do on CPU)."""
        if self.tensor.device.type == "cpu":
            return
        for run, buffer in zip(self.byte_runs(page_ids, layers), buffers, strict=True):
            run.copy_(torch.frombuffer(buffer, dtype=torch.uint8))

    def _host_runs(self, page_ids: Sequence[int], layers: range) -> list[memoryview]:
        if self._host_bytes is not None:  # slicing one memoryview is ~10 times cheaper than a tensor for each run
            return list(map(self._host_bytes.__getitem__, self._byte_slices(page_ids, layers)))
        return [run.cpu().numpy().data for run in self.byte_runs(page_ids, layers)]

    def byte_spans(self, page_ids: Sequence[int], layers: range) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where in the pool's bytes those pages are, in wire order, neighbours joined: starts and lengths, [runs]."""
        page_bytes = self.layout.page_bytes_per_layer // 2
        firsts, ends = page_runs(tuple(page_ids))
        # K of a layer, then its V, each with all pages of the pool.
        halves = np.arange(2 * layers.start, 2 * layers.stop, dtype=np.int64)[:, None] * (self.num_pages * page_bytes)
        starts = (halves + firsts * page_bytes).ravel()
        return starts, np.tile((ends - firsts) * page_bytes, len(halves))

    def _byte_slices(self, page_ids: Sequence[int], layers: range) -> Iterable[slice]:
        starts, lengths = self.byte_spans(page_ids, layers)
        return map(slice, starts.tolist(), (starts + lengths).tolist())


@functools.lru_cache(maxsize=64)
def page_runs(page_ids: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Maximal runs [first, end) of consecutive page ids, in the given order: two arrays [runs].

    A transfer asks for the same ones again with every part.
    """
    ids = np.asarray(page_ids, dtype=np.int64)
    heads = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)
    firsts = ids[heads]
    runs = firsts, firsts + np.diff(heads, append=len(ids))
    for array in runs:
        array.flags.writeable = False
    return runs
