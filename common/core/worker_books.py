"""Whether a worker's books add up: pages, blocks and leases against each other. For checks, never for decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.kv_retention import KvRetention
from common.core.page_pool import PagePool
from common.core.unowned import Holding, Unowned
from common.core.worker_block import Stage
from common.core.worker_blocks import WorkerBlocks
from common.core.worker_iteration import Iteration


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerBooks:
    """The live state of one `WorkerCore`, to be looked at only."""

    pool: PagePool
    blocks: WorkerBlocks
    retention: KvRetention

    def check(self, running: Iteration | None) -> None:
        """Assert that pages add up and every block is exactly where its stage says."""
        self.pool.check_conservation()
        self.blocks.check_queues()
        holders, retained = self.blocks.holding_pages(), self._retained()
        assert not holders & retained, holders & retained
        assert self.pool.owners == holders | retained, self.pool.owners ^ (holders | retained)
        in_forward = {block.attempt for block in self.blocks if block.in_forward}
        assert in_forward == set(running.attempts if running else ()), in_forward

    def unowned(self, now: float) -> Iterator[Unowned]:
        """Pages that are neither free nor a block's, and K/V past its lease that nobody reads; none unless a bug."""
        rightful = self.blocks.holding_pages() | self._retained()
        owned_pages = 0
        for attempt in sorted(self.pool.owners):
            pages = len(self.pool.pages_of(attempt))
            owned_pages += pages
            if attempt not in rightful:
                yield Unowned(holding=Holding.PAGES, name=f"pages of {attempt}", count=pages)
        if missing_pages := abs(self.pool.pages_total - self.pool.free_pages - owned_pages):
            yield Unowned(holding=Holding.PAGES, name="pages neither free nor owned, or both", count=missing_pages)
        for attempt in self.retention.overdue(now):
            yield Unowned(holding=Holding.LEASES, name=f"K/V of {attempt}, past its lease")

    def here(self) -> frozenset[BlockAttempt]:
        """Every block, also those that were cancelled while a forward or fetch still touches their pages."""
        return frozenset(block.attempt for block in self.blocks)

    def awaited(self) -> frozenset[BlockAttempt]:
        """Blocks here whose callers wait for an answer."""
        return frozenset(block.attempt for block in self.blocks if block.stage is not Stage.ZOMBIE)

    def offered(self) -> frozenset[BlockAttempt]:
        """K/V on offer under lease."""
        return frozenset(self.retention.offered)

    def _retained(self) -> set[BlockAttempt]:
        return {*self.retention.offered, *self.retention.withdrawn}
