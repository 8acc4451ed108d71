"""Where a fetch puts K/V: straight into the pool's pages where they lie side by side, else through staging buffers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch

from common.worker.kv_staging import KvStaging, StagingBuffer


class PoolSink:
    """`KvSink` over pages of a pool, which must stay the caller's until the fetch has ended.

    A context manager: on leaving it, when nothing writes to it any more, its staging buffers go back.
    """

    def __init__(self, staging: KvStaging, page_ids: Sequence[int]) -> None:
        self._staging = staging
        self._page_ids = tuple(page_ids)
        self._index = torch.tensor(self._page_ids, dtype=torch.int64, device=staging.pool.tensor.device)
        self._buffers: list[StagingBuffer] = []
        self.window_layers = staging.window_layers(self._page_ids)
        if not staging.in_place(self._page_ids):
            self._buffers = [staging.take(len(self._page_ids)) for _ in range(self.window_layers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for buffer in self._buffers:
            self._staging.give_back(buffer)
        self._buffers.clear()

    @property
    def layers(self) -> int:
        """Layers of the pool."""
        return self._staging.pool.layout.n_layers

    def views(self, layer: int) -> Sequence[memoryview]:
        """See `KvSink.views`."""
        if self._buffers:
            return [self._buffers[layer % self.window_layers].view]
        return self._staging.pool.writable_runs(self._page_ids, range(layer, layer + 1))

    async def complete(self, layer: int) -> None:
        """See `KvSink.complete`."""
        if self._buffers:
            await self._staging.store(layer, self._index, self._buffers[layer % self.window_layers])
