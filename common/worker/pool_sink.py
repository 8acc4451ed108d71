"""Where a fetch puts K/V: straight into the pool's pages where it can, else through staging buffers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch

from common.transport.memory_run import MemoryRun
from common.worker.kv_staging import KvStaging, StagingBuffer
from common.worker.page_memory import page_memory


class PoolSink:
    """`KvSink` over pages of a pool, which must stay the caller's until the fetch has ended.

    `views` of scattered pages are staging buffers, `memory` is the pages themselves. A context manager: on leaving it,
    when nothing writes to it any more, its staging buffers go back.
    """

    def __init__(self, staging: KvStaging, page_ids: Sequence[int]) -> None:
        self._staging = staging
        self._page_ids = tuple(page_ids)
        self._buffers: list[StagingBuffer] = []
        self._in_place = staging.in_place(self._page_ids)
        self.layers = staging.parts(len(page_ids))
        self.window_layers = self.layers if self._in_place else staging.staged_parts(len(page_ids))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for buffer in self._buffers:
            self._staging.give_back(buffer)
        self._buffers.clear()

    def in_runs(self) -> None:
        """See `KvSink.in_runs`."""
        if not self._in_place and self._staging.in_runs(self._page_ids):
            self._in_place = True
            self.window_layers = self.layers

    def views(self, layer: int) -> Sequence[memoryview]:
        """See `KvSink.views`."""
        if self._in_place:
            return self._staging.pool.writable_runs(self._page_ids, self._layers_of(layer))
        if not self._buffers:
            self._take_buffers()
        return [self._buffers[layer % self.window_layers].view]

    @property
    def in_host_memory(self) -> bool:
        """See `KvSink.in_host_memory`."""
        return self._staging.on_host

    @property
    def in_long_runs(self) -> bool:
        """See `KvSink.in_long_runs`."""
        return self._staging.in_long_runs(self._page_ids)

    def memory(self, layer: int) -> MemoryRun:
        """See `KvSink.memory`."""
        return page_memory(self._staging.pool, self._page_ids, self._layers_of(layer))

    async def complete(self, layer: int) -> None:
        """See `KvSink.complete`."""
        if self._buffers and not self._in_place:
            await self._staging.store(self._layers_of(layer), self._index, self._buffers[layer % self.window_layers])

    def _take_buffers(self) -> None:
        self._index = torch.tensor(self._page_ids, dtype=torch.int64)
        self._buffers = [self._staging.take(len(self._page_ids)) for _ in range(self.window_layers)]

    def _layers_of(self, part: int) -> range:
        return self._staging.layers_of(part, len(self._page_ids))
