"""Every block attempt inside a worker, and the queues in which some of them wait or take turns."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from common.core.ids import BlockAttempt
from common.core.worker_block import Stage, WorkerBlock


class WorkerBlocks:
    """Blocks from arrival to their last page. Each queue is in order of arrival, `decodes` in order of turns.

    Pages are granted strictly in order of arrival, over decodes that wait for pages and prefills that memory stops, so
    neither keeps the other waiting for longer than the blocks in flight need to end.
    """

    def __init__(self) -> None:
        self._all: dict[BlockAttempt, WorkerBlock] = {}
        self.queued: dict[BlockAttempt, WorkerBlock] = {}
        self.page_waiters: dict[BlockAttempt, WorkerBlock] = {}
        self.decodes: dict[BlockAttempt, WorkerBlock] = {}

    def __iter__(self) -> Iterator[WorkerBlock]:
        """A snapshot in order of arrival: blocks may come and go meanwhile."""
        return iter(tuple(self._all.values()))

    def __getitem__(self, attempt: BlockAttempt) -> WorkerBlock:
        return self._all[attempt]

    @property
    def attempts(self) -> Collection[BlockAttempt]:
        """Every attempt that is here, in order of arrival."""
        return self._all.keys()

    def get(self, attempt: BlockAttempt) -> WorkerBlock | None:
        """The block of that attempt, if it is here."""
        return self._all.get(attempt)

    def at(self, stage: Stage) -> tuple[BlockAttempt, ...]:
        """Attempts at that stage, in order of arrival."""
        return tuple(attempt for attempt, block in self._all.items() if block.stage is stage)

    @property
    def queued_tokens(self) -> int:
        """Canvas tokens of the prefills that wait."""
        return sum([block.canvas_tokens for block in self.queued.values()])

    def add(self, block: WorkerBlock) -> None:
        """Take in a new block, at the end of the queue of its stage."""
        assert block.attempt not in self._all, f"{block.attempt} is here already"
        self._all[block.attempt] = block
        queue = self.queued if block.stage is Stage.QUEUED else self.page_waiters
        queue[block.attempt] = block

    def dequeue(self, attempt: BlockAttempt) -> None:
        """Take the attempt out of whatever queue it is in."""
        for queue in (self.queued, self.page_waiters, self.decodes):
            queue.pop(attempt, None)

    def remove(self, attempt: BlockAttempt) -> None:
        """Forget the attempt."""
        self.dequeue(attempt)
        del self._all[attempt]

    def next_page_waiter(self) -> WorkerBlock | None:
        """The decode that gets pages next; None when none waits, or an older prefill that memory stops goes first."""
        if not self.page_waiters:
            return None
        waiter = next(iter(self.page_waiters.values()))
        head = next(iter(self.queued.values()), None)
        head_first = head and head.pages_awaited_since_s is not None and head.arrival < waiter.arrival
        return None if head_first else waiter

    def may_take_pages(self, prefill: WorkerBlock) -> bool:
        """Whether no older decode waits for pages."""
        waiter = next(iter(self.page_waiters.values()), None)
        return waiter is None or waiter.arrival > prefill.arrival

    def take_turns(self, max_batch_size: int) -> tuple[WorkerBlock, ...]:
        """The decodes of the next iteration; they go to the back, so that all take turns."""
        batch = tuple(self.decodes.values())
        if len(batch) <= max_batch_size:
            # All in their order, to the back: nothing moves.
            return batch
        batch = batch[:max_batch_size]
        for block in batch:
            self.decodes[block.attempt] = self.decodes.pop(block.attempt)
        return batch

    def page_waits(self, wait_s: float) -> list[tuple[float, WorkerBlock]]:
        """When each decode call's wait for pages ends. A Prefill call waits on: leases bound its wait."""
        if not self.page_waiters and not self.queued:
            return []
        waiting = (*self.page_waiters.values(), *itertools.islice(self.queued.values(), 1))
        return [
            (block.pages_awaited_since_s + wait_s, block)
            for block in waiting
            if block.pages_awaited_since_s is not None and block.source is not None
        ]

    def next_page_wait_end(self, wait_s: float) -> float | None:
        """When the first of those waits ends; None when there is none."""
        waits = self.page_waits(wait_s)
        return min([due for due, _ in waits]) if waits else None

    def holding_pages(self) -> set[BlockAttempt]:
        """Attempts that must own pages by their stage."""
        return {a for a, block in self._all.items() if block.stage not in (Stage.QUEUED, Stage.WAITING_PAGES)}

    def check_queues(self) -> None:
        """Assert that each queue holds exactly the blocks of its stage."""
        assert set(self.at(Stage.QUEUED)) == set(self.queued), self.queued
        assert set(self.at(Stage.WAITING_PAGES)) == set(self.page_waiters), self.page_waiters
        assert set(self.at(Stage.DECODING)) == set(self.decodes), self.decodes
