"""Who can serve which canvas at all, were it empty: what changes with the fleet's membership only."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from common.core.cluster import WorkerSpec
from common.core.ids import Role, ServingMode, WorkerLife
from common.core.scheduler_config import SchedulerConfig


class Reach:
    """Longest canvases by pairs of workers, in tokens. `refused_pairs` (owner, reader) cannot exchange K/V."""

    def __init__(
        self,
        config: SchedulerConfig,
        workers: Sequence[WorkerSpec],
        refused_pairs: Collection[tuple[WorkerLife, WorkerLife]],
    ) -> None:
        self._readers = [spec for spec in workers if spec.role is Role.DECODE]
        self._refused_pairs = refused_pairs
        self._refused_owners = {owner for owner, _ in refused_pairs}
        self._by_layout: dict[str, int] = {}
        for spec in self._readers:
            longest = self._by_layout.get(spec.layout_fingerprint, 0)
            self._by_layout[spec.layout_fingerprint] = max(longest, spec.canvas_limit_tokens)
        self._page_sizes = {spec.page_size_tokens for spec in self._readers}
        self.canvas_limit_tokens = self._limit(config, [spec for spec in workers if spec.role is Role.PREFILL])

    @property
    def has_readers(self) -> bool:
        """Whether any decode worker takes work."""
        return bool(self._readers)

    def of(self, owner: WorkerSpec) -> int:
        """Longest canvas that some decode worker could take over from `owner`."""
        if owner.life not in self._refused_owners:
            return self._by_layout.get(owner.layout_fingerprint, 0)
        limits = (spec.canvas_limit_tokens for spec in self._readers if self._match(owner, spec))
        return max(limits, default=0)

    def page_rounded_tokens(self, canvas_tokens: int) -> int:
        """Decode memory that a canvas takes where its pages are largest."""
        return max((-(-canvas_tokens // size) * size for size in self._page_sizes), default=0)

    def _match(self, owner: WorkerSpec, reader: WorkerSpec) -> bool:
        same = owner.layout_fingerprint == reader.layout_fingerprint
        return same and (owner.life, reader.life) not in self._refused_pairs

    def _limit(self, config: SchedulerConfig, writers: Sequence[WorkerSpec]) -> int | None:
        if not self._readers:
            return None
        alone = max(spec.canvas_limit_tokens for spec in self._readers)
        paired = max((min(spec.canvas_limit_tokens, self.of(spec)) for spec in writers), default=0)
        if config.mode is ServingMode.COLOCATED:
            return alone
        if config.overflows:
            return max(alone, paired)
        return paired or None
