"""The watch over leaks: what counts as one, what is told, and that it never ends a service."""

from __future__ import annotations

import logging

import pytest

from common.clock import ManualClock
from common.core.unowned import Holding, Unowned
from common.metrics.leaks import GRACE_S, LeakWatch
from tests.metrics.measured import value_of

PAGES = Unowned(holding=Holding.PAGES, name="pages of a block that is gone", count=7)
LEASE = Unowned(holding=Holding.LEASES, name="K/V of nobody")


class Watched:
    """A watch over a list that the test fills, and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.held: list[Unowned] = []
        self.problem = ""
        self.watch = LeakWatch(clock=self.clock, unowned=lambda: self.held, check=self._check)

    def look(self, after_s: float) -> dict[str, float]:
        """The gauges after a look at that time from now."""
        self.clock.advance(after_s)
        self.watch.look()
        return gauges()

    def _check(self) -> None:
        if self.problem:
            raise AssertionError(self.problem)


def gauges() -> dict[str, float]:
    names = ("leaked_pages", "leaked_requests", "leaked_leases", "conservation_broken")
    return {name: value_of(f"sangam_{name}") for name in names}


NOTHING = {"leaked_pages": 0, "leaked_requests": 0, "leaked_leases": 0, "conservation_broken": 0}


def test_what_stays_unowned_longer_than_the_grace_is_a_leak_until_it_is_gone() -> None:
    watched = Watched()
    assert gauges() == NOTHING
    watched.held = [PAGES, LEASE]
    assert watched.look(0.0) == NOTHING, "an end may still be on its way"
    assert watched.look(GRACE_S) == {**NOTHING, "leaked_pages": 7, "leaked_leases": 1}
    watched.held = [LEASE]
    assert watched.look(0.1) == {**NOTHING, "leaked_leases": 1}
    watched.held = []
    assert watched.look(0.1) == NOTHING


def test_what_comes_and_goes_is_no_leak() -> None:
    watched = Watched()
    for turn in range(20):
        watched.held = [Unowned(holding=Holding.REQUESTS, name=f"request {turn}")]
        assert watched.look(GRACE_S / 2) == NOTHING
    watched.held = []
    watched.look(0.0)
    watched.held = [Unowned(holding=Holding.REQUESTS, name="request 0")]
    assert watched.look(GRACE_S) == NOTHING, "its wait begins anew"


def test_each_leak_is_told_to_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.held = [PAGES]
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            watched.look(GRACE_S)
    assert [record.message for record in caplog.records] == ["leaked pages: pages of a block that is gone"]


def test_books_that_do_not_add_up_are_shown_and_told_but_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.problem = "3 + 4 != 8"
    with caplog.at_level(logging.ERROR):
        assert watched.look(0.0) == {**NOTHING, "conservation_broken": 1}
        assert watched.look(1.0) == {**NOTHING, "conservation_broken": 1}
    assert [record.message for record in caplog.records] == ["the books do not add up: 3 + 4 != 8"]
    watched.problem = ""
    assert watched.look(1.0) == NOTHING
