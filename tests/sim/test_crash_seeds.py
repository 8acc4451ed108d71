"""Runs in which everything goes wrong: every request ends, none twice, and idle cores hold nothing."""

from __future__ import annotations

import pytest

from common.core.ids import ServingMode
from common.sim.faults import FaultKind, FaultSettings, parse_faults
from common.sim.metrics import summarise
from tests.sim.runs import simulate

FAULTS = "crash=4,hang=2,slow=2,duplicate=0.05,reorder=0.1"


@pytest.mark.parametrize("first_seed", range(0, 100, 10))
def test_every_request_ends_once_whatever_crashes(first_seed: int):
    repeated = 0
    for seed in range(first_seed, first_seed + 10):
        mode = list(ServingMode)[seed % 3].value
        # Every second run has pools that hold two or three canvases: crashes meet full memory.
        tight = {"kv_pages": 120, "kv_page_wait": 0.5} if seed % 2 else {}
        # Each mode meets every pair of these as seeds go by.
        options = {"kv_overlap": "on" if seed // 3 % 2 else "off", "token_budget": "auto" if seed // 6 % 2 else "1024"}
        result = simulate(mode=mode, seed=seed, faults=FAULTS, requests=12, **options, **tight)
        metrics = summarise(result)
        assert (metrics.unfinished, metrics.ended_twice) == (0, 0), seed
        assert metrics.finished + sum(metrics.failures.values()) == 12, seed
        repeated += metrics.repeated_attempts
    assert repeated > 0


def test_nothing_but_crashes_of_the_only_worker():
    metrics = summarise(simulate(mode="colocated", prefill_workers=0, decode_workers=1, faults="crash=3", qps=2))
    assert (metrics.finished, metrics.unfinished) == (30, 0)


def test_a_hang_beyond_the_heartbeat_timeout_is_a_new_life():
    short = simulate(mode="hybrid", faults="hang=30", seed=1)
    assert summarise(short).finished == 30
    assert summarise(short).repeated_attempts > 0


def test_the_plan_is_drawn_from_the_seed():
    settings = parse_faults("crash=20, slow=5,hang=10", option="--faults")
    workers = [f"w{n}" for n in range(4)]
    plan = settings.plan(workers, span_s=10.0, seed=3)  # type: ignore[arg-type]  # plain names
    assert plan == settings.plan(workers, span_s=10.0, seed=3)  # type: ignore[arg-type]
    assert plan != settings.plan(workers, span_s=10.0, seed=4)  # type: ignore[arg-type]
    kinds = [fault.kind for fault in plan]
    assert [kinds.count(kind) for kind in FaultKind] == [20, 10, 5]
    assert all(0 <= fault.at_s < 10 and fault.lasts_s >= 0 for fault in plan)
    assert {fault.worker_id for fault in plan} == set(workers)


def test_faults_are_parsed():
    assert parse_faults("duplicate=0.5,reorder=0", option="") == FaultSettings(duplicate_rate=0.5)
