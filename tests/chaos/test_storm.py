"""A short storm over all services: `make chaos` in small."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.faults import FaultKind, Mischief
from tests.chaos.proof import KINDS
from tests.chaos.report import render
from tests.chaos.requests import mixed_requests
from tests.chaos.storm import StormPlan, storm
from tests.chaos.wired_cluster import Fleet
from tests.integration.cluster_help import random_model
from tests.invariance.solo import solo_answers


def test_every_request_of_a_short_storm_gets_its_own_answer(tmp_path: Path) -> None:
    model_dir = random_model(tmp_path / "model")
    requests = mixed_requests(30, seed=7, longest_tokens=160)
    solo = solo_answers(model_dir, requests, on_answer=lambda done: None)
    plan = StormPlan(
        fleet=Fleet(schedulers=1, prefill_workers=1, decode_workers=2, wired=("decode-1",)),
        mischief=Mischief(kinds=KINDS, kill_every_s=1.5, disturb_every_s=3.0, disturbed_s=(0.3, 4.0), most_faults=10),
        clients=6,
        seed=7,
    )
    result = asyncio.run(storm(plan, model_dir, tmp_path / "run", requests, solo, say=print))
    print(render(result))
    assert result.problems == ()
    assert result.finished == len(requests)
    assert len({fault.kind for fault in result.faults}) > 1 and result.restarts
    assert result.replayed_events > 1000
    assert {FaultKind.WORKER, FaultKind.SCHEDULER} & {fault.kind for fault in result.faults}
