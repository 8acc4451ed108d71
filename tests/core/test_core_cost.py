"""How many workers one event makes the scheduler look at: counted, not timed (`tests.core.core_cost` times it)."""

from __future__ import annotations

from typing import Any

import pytest

from common.core.ids import ServingMode
from common.core.placement import COLOCATED_POLICIES
from common.core.roster import Roster
from common.core.scheduler_config import SchedulerConfig
from tests.core.core_cost import Mill

LOOKS_AT_ALL = {"balanced_length"}


@pytest.mark.parametrize("policy", sorted(set(COLOCATED_POLICIES) - LOOKS_AT_ALL))
@pytest.mark.parametrize(("workers", "levels"), [(16, 4), (512, 9)])
def test_an_event_looks_at_a_path_of_the_tree_not_at_every_worker(
    monkeypatch: pytest.MonkeyPatch, policy: str, workers: int, levels: int
) -> None:
    config = SchedulerConfig(mode=ServingMode.COLOCATED, max_queued_requests=10**6, colocated_policy=policy)
    mill = Mill(workers, 50, config)
    asked, merged = [0], [0]
    right_ask, right_merge = Roster._ask, Roster._merge

    def ask(self: Roster[Any], slot: int) -> int:
        asked[0] += 1
        return right_ask(self, slot)

    def merge(self: Roster[Any], node: int) -> bool:
        merged[0] += 1
        return right_merge(self, node)

    monkeypatch.setattr(Roster, "_ask", ask)
    monkeypatch.setattr(Roster, "_merge", merge)
    before = mill.events
    for _ in range(200):
        mill.turn()
    events = mill.events - before
    assert 0 < asked[0] <= 3 * events and merged[0] <= levels * asked[0]
