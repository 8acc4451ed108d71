"""A count ledger of KV pages: who holds how many, and how many are free. No page numbers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class PageLedger(Generic[H]):
    """Pages of one pool, reserved by holder. free + sum of holdings == total, always.

    Every misuse (unknown holder, a second reservation, more than is free) is a bug and raises AssertionError.
    """

    def __init__(self, total_pages: int) -> None:
        self.total_pages = total_pages
        self.free_pages = total_pages
        self._held: dict[H, int] = {}

    @property
    def held(self) -> Mapping[H, int]:
        """Pages by holder, read-only."""
        return MappingProxyType(self._held)

    def reserve(self, holder: H, pages: int) -> None:
        """Give `pages` to `holder`, which holds none yet."""
        assert holder not in self._held, f"{holder} reserves twice"
        assert 0 < pages <= self.free_pages, f"{holder} reserves {pages} of {self.free_pages} free pages"
        self._held[holder] = pages
        self.free_pages -= pages

    def release(self, holder: H) -> int:
        """Take back all that `holder` holds; returns the number of pages."""
        assert holder in self._held, f"{holder} releases what it does not hold"
        pages = self._held.pop(holder)
        self.free_pages += pages
        return pages

    def hand_over(self, holder: H, heir: H) -> None:
        """Let `heir` hold what `holder` held."""
        assert holder in self._held and heir not in self._held, f"{holder} cannot hand over to {heir}"
        self._held[heir] = self._held.pop(holder)

    def check(self) -> None:
        """Assert conservation."""
        held = sum(self._held.values())
        assert self.free_pages + held == self.total_pages, f"{self.free_pages} + {held} != {self.total_pages}"
