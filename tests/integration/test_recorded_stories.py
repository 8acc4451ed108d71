"""The stories that running services write of their cores, replayed to the same effects."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from common.core.params import CacheMode, ConfidenceQuota
from common.generation_input import GenerationInput
from common.sim.calibration import fit
from common.sim.story_steps import steps_of_stories
from common.story.replay import replay
from tests.integration.cluster_help import all_pages_free, ask, eventually, random_model, running_cluster, state_of


def wanted(index: int) -> GenerationInput:
    return GenerationInput(
        text=None,
        token_ids=tuple(range(1, 20 + index)),
        max_tokens=64,
        cache_mode=list(CacheMode)[index % 3],
        strategy=ConfidenceQuota(1),
        temperature=0.5,
        ignore_eos=True,
    )


async def test_live_services_are_replayed_to_equal_effects(tmp_path: Path) -> None:
    stories = tmp_path / "stories"
    model_dir = random_model(tmp_path / "model")
    async with running_cluster(model_dir, tmp_path / "run", story_dir=stories) as cluster:

        async def is_decoding() -> bool:
            return any(worker.active_decodes for worker in (await state_of(cluster)).workers)

        calls = [asyncio.create_task(ask(cluster, wanted(index))) for index in range(4)]
        await eventually(is_decoding)
        os.kill(cluster.processes["prefill-0"], signal.SIGKILL)
        await asyncio.gather(*calls)
        await eventually(lambda: all_pages_free(cluster))
    told = {path: replay(path) for path in sorted(stories.iterdir())}
    assert [found.parting for found in told.values()] == [None] * len(told)
    assert {found.service for found in told.values()} == {"scheduler", "kv_store", "prefill-0", "decode-0"}
    assert all(found.effects > 10 for found in told.values() if found.service in ("scheduler", "decode-0"))
    check_measured(stories)
    scheduler = next(path for path, found in told.items() if found.service == "scheduler")
    check_tampered(scheduler)


def check_measured(stories: Path) -> None:
    """What the simulator takes from the same stories: the forwards of both kinds of workers."""
    steps = steps_of_stories(stories, option="--calibrate")
    assert any(step.prefill_tokens for step in steps) and any(step.decode_tokens for step in steps)
    cost = fit(steps, option="--calibrate").cost
    assert cost.launch_s + cost.prefill_token_s + cost.decode_token_s > 0.0


def check_tampered(path: Path) -> None:
    """The same story with one token of one step changed parts there, and nowhere before."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    number, step = next(
        (number, line["event"]["step"])
        for number, line in enumerate(lines)
        if number > len(lines) // 2 and line.get("event", {}).get("_") == "DecodeStepped" and line.get("effects")
    )
    step["token_ids"][0] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    parting = replay(path).parting
    assert parting is not None and parting.told.number == number
