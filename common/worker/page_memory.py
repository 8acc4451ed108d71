"""Where pages of a pool lie in this process' memory: what a reader of the same machine needs to take them itself."""

from __future__ import annotations

from collections.abc import Sequence

from common.engine.kv_pool import KvPool
from common.transport.memory_run import MemoryRun


def page_memory(pool: KvPool, page_ids: Sequence[int], layers: range) -> MemoryRun:
    """Those layers of some pages of a pool in host memory, in wire order. Neighbouring pages are one piece."""
    assert pool.host_bytes is not None, "pages of an accelerator have no address here"
    return MemoryRun(pool.host_bytes, *pool.byte_spans(page_ids, layers))
