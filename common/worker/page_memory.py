"""Where pages of a pool lie in this process' memory: what a reader of the same machine needs to take them itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.engine.kv_pool import KvPool, page_runs
from common.transport.memory_run import MemoryRun


class PageMemory:
    """Some pages of a pool in host memory, layers at a time. Neighbouring pages are one piece; no loop over pages."""

    def __init__(self, pool: KvPool, page_ids: Sequence[int]) -> None:
        assert pool.host_bytes is not None, "pages of an accelerator have no address here"
        self._memory = pool.host_bytes
        page_bytes = pool.layout.page_bytes_per_layer // 2
        self._half_bytes = pool.num_pages * page_bytes
        firsts, ends = page_runs(tuple(page_ids))
        self._starts = firsts * page_bytes
        self._lengths = (ends - firsts) * page_bytes

    def of(self, layers: range) -> MemoryRun:
        """The pages of those layers in wire order."""
        halves = np.arange(2 * layers.start, 2 * layers.stop, dtype=np.int64) * self._half_bytes
        starts = (halves[:, None] + self._starts).reshape(-1)
        return MemoryRun(self._memory, starts, np.tile(self._lengths, len(halves)))
