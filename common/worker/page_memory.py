"""Where pages of a pool lie in this process' memory: what a reader of the same machine needs to take them itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.engine.kv_pool import KvPool
from common.transport.memory_run import MemoryRun


class PageMemory:
    """Some pages of a pool in host memory, layers at a time. Neighbouring pages are one piece; no loop over pages."""

    def __init__(self, pool: KvPool, page_ids: Sequence[int]) -> None:
        assert pool.host_bytes is not None, "pages of an accelerator have no address here"
        self._memory = pool.host_bytes
        page_bytes = pool.layout.page_bytes_per_layer // 2
        self._half_bytes = pool.num_pages * page_bytes
        ids = np.asarray(page_ids, dtype=np.int64)
        heads = np.flatnonzero(np.diff(ids, prepend=ids[0] - 2) != 1)
        self._starts = ids[heads] * page_bytes
        self._lengths = np.diff(heads, append=len(ids)) * page_bytes

    def of(self, layers: range) -> MemoryRun:
        """The pages of those layers in wire order."""
        halves = np.arange(2 * layers.start, 2 * layers.stop, dtype=np.int64) * self._half_bytes
        starts = (halves[:, None] + self._starts).reshape(-1)
        return MemoryRun(self._memory, starts, np.tile(self._lengths, len(halves)))
