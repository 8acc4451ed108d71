"""Who holds which KV page of one worker."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from common.core.ids import BlockAttempt

Run = tuple[int, int]
"""A run of neighbouring pages: first page id, one past the last."""


class PagePool:
    """Page ids 0 .. pages_total - 1; each is free or owned by exactly one attempt.

    Prefers neighbouring pages: a transfer moves a run of pages in one piece.
    """

    def __init__(self, pages_total: int) -> None:
        assert pages_total >= 1, pages_total
        self.pages_total = pages_total
        self._free_runs: list[Run] = [(0, pages_total)]
        self._free_pages = pages_total
        self._owned: dict[BlockAttempt, tuple[int, ...]] = {}
        self._runs: dict[BlockAttempt, list[Run]] = {}

    @property
    def free_pages(self) -> int:
        """Pages nobody owns."""
        return self._free_pages

    @property
    def owners(self) -> frozenset[BlockAttempt]:
        """Attempts that own pages."""
        return frozenset(self._owned)

    def pages_of(self, owner: BlockAttempt) -> tuple[int, ...]:
        """Page ids of `owner`, ascending; empty when it owns none."""
        return self._owned.get(owner, ())

    def allocate(self, owner: BlockAttempt, pages: int) -> tuple[int, ...] | None:
        """Give `owner` that many pages, ascending; None (and nothing taken) when too few are free."""
        assert pages >= 1, pages
        assert owner not in self._owned, f"{owner} owns pages already"
        if pages > self._free_pages:
            return None
        runs: list[Run] = []
        missing = pages
        for start, end in self._choose_runs(pages):
            taken = min(end - start, missing)
            missing -= taken
            runs.append((start, start + taken))
            self._free_runs.remove((start, end))
            if start + taken < end:
                self._free_runs.append((start + taken, end))
        self._free_runs.sort()
        self._free_pages -= pages
        runs.sort()
        self._runs[owner] = runs
        self._owned[owner] = tuple(itertools.chain.from_iterable(range(*run) for run in runs))
        return self._owned[owner]

    def release(self, owner: BlockAttempt) -> None:
        """Take back every page of `owner`, which must own some: a second release is a bug."""
        assert owner in self._owned, f"{owner} owns no pages"
        self._free_pages += len(self._owned.pop(owner))
        self._free_runs = _merge([*self._free_runs, *self._runs.pop(owner)])

    def check_conservation(self) -> None:
        """Assert that owned and free pages are disjoint and make up the pool."""
        free = [page for start, end in self._free_runs for page in range(start, end)]
        owned = [page for page_ids in self._owned.values() for page in page_ids]
        assert len(free) == self._free_pages, (len(free), self._free_pages)
        assert sorted(free + owned) == list(range(self.pages_total)), "pages lost or doubled"

    def _choose_runs(self, pages: int) -> list[Run]:
        """The tightest run that holds them all, else the largest runs first (fewest pieces)."""
        fitting = [run for run in self._free_runs if run[1] - run[0] >= pages]
        if fitting:
            return [min(fitting, key=lambda run: (run[1] - run[0], run[0]))]
        chosen: list[Run] = []
        missing = pages
        for run in sorted(self._free_runs, key=lambda run: (run[0] - run[1], run[0])):
            if missing <= 0:
                break
            chosen.append(run)
            missing -= run[1] - run[0]
        return chosen


def _merge(runs: Iterable[Run]) -> list[Run]:
    merged: list[Run] = []
    for start, end in sorted(runs):
        if merged and start <= merged[-1][1]:
            assert start == merged[-1][1], f"page {start} is free twice"
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
