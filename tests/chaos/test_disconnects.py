"""Clients that go away leave nothing behind: `make chaos`' second part in small."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.disconnects import DisconnectResult, disconnect_storm, problems, render
from tests.chaos.requests import mixed_requests
from tests.chaos.wired_cluster import Fleet, wired_cluster
from tests.integration.cluster_help import random_model
from tests.invariance.solo import solo_answers


def test_requests_after_a_wave_of_disconnects_find_a_whole_cluster(tmp_path: Path) -> None:
    model_dir = random_model(tmp_path / "model")
    leaving = mixed_requests(30, seed=5, longest_tokens=448)
    after = mixed_requests(8, seed=6, longest_tokens=96)
    solo = solo_answers(model_dir, after, on_answer=lambda done: None)

    async def run() -> DisconnectResult:
        fleet = Fleet(schedulers=1, prefill_workers=1, decode_workers=1, wired=())
        async with wired_cluster(fleet, model_dir, tmp_path / "run", say=print) as wired:
            return await disconnect_storm(wired.cluster, leaving, after, seed=5)

    result = asyncio.run(run())
    print(render(result))
    assert problems(result, solo) == []
    assert sum(result.left_at.values()) == len(leaving)
    assert {"nothing", "accepted", "committed"} & set(result.left_at), "they left at several phases"
    assert len(result.left_at) >= 2
