"""Requests through all five services as processes, in each mode, against the goldens and the engine in process."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from common.cli.cluster import Cluster
from common.cli.cluster_metrics import WATCHED
from common.cli.local_check import LocalCheck
from common.core.ids import ServingMode
from common.core.params import CacheMode, ConfidenceDynamic, ConfidenceQuota, ConfidenceThreshold, RandomReveal
from common.generation_input import GenerationInput
from common.metrics.leaks import GRACE_S, LOOK_INTERVAL_S
from tests.engine.golden import GoldenRun, golden_runs
from tests.integration.cluster_help import (
    all_pages_free,
    ask,
    eventually,
    golden_model,
    running_cluster,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = {
    "colocated": {"mode": ServingMode.COLOCATED, "prefill_workers": 0, "golden": "llada-mha", "kv_pages": 64},
    # Two canvases of 7 pages fit: most of the load has to wait for memory.
    "disaggregated": {
        "mode": ServingMode.DISAGGREGATED,
        "golden": "dream-gqa",
        "kv_pages": 20,
        "kv_transport": "auto",
    },
    # Every prefill beyond the first at a time overflows.
    "hybrid": {"mode": ServingMode.HYBRID, "golden": "llada-gqa", "kv_pages": 64, "overload_threshold_tokens": 50},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running cluster and the golden checkpoint it serves."""

    mode: ServingMode
    golden: str
    cluster: Cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(SETTINGS))
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    settings = dict(SETTINGS[request.param])
    golden = str(settings.pop("golden"))
    folder = tmp_path_factory.mktemp(request.param)
    model_dir = golden_model(golden, folder / golden)
    async with running_cluster(model_dir, folder / "run", **settings) as cluster:
        yield Served(mode=settings["mode"], golden=golden, cluster=cluster)  # type: ignore[arg-type]  # from the table


def wanted_of(run: GoldenRun) -> GenerationInput:
    spec = run.spec
    return GenerationInput(
        text=None,
        token_ids=spec.prompt_token_ids,
        max_tokens=spec.max_tokens,
        block_length_tokens=spec.block_length_tokens,
        cache_mode=spec.cache_mode,
        strategy=spec.sampling.strategy,
        ignore_eos=True,
    )


async def test_goldens_all_at_once_token_for_token(served: Served) -> None:
    runs = [run for run in golden_runs() if run.name == served.golden]
    assert {run.spec.cache_mode for run in runs} == set(CacheMode)
    outputs = await asyncio.gather(*(ask(served.cluster, wanted_of(run)) for run in runs))
    for run, output in zip(runs, outputs, strict=True):
        assert run.spec.prompt_token_ids + output.token_ids == run.canvas, run.label
        assert output.prefill_forwards + output.decode_forwards == run.forwards, run.label
        assert output.prefill_forwards == output.attempts == run.spec.blocks, run.label
        assert output.finish_reason == "length"
    await eventually(lambda: all_pages_free(served.cluster))


async def test_blocks_run_where_the_mode_says(served: Served) -> None:
    runs = [run for run in golden_runs() if run.name == served.golden and run.spec.cache_mode is CacheMode.DUAL]
    outputs = await asyncio.gather(*(ask(served.cluster, wanted_of(run)) for run in runs * 2))
    blocks = [block for output in outputs for block in output.blocks]
    overflowed = [block for block in blocks if block.overflow]
    moved = [block for block in blocks if block.transfer_bytes]
    if served.mode is ServingMode.COLOCATED:
        assert {block.prefill_worker_id for block in blocks} == {"decode-0"}
        assert not moved and not overflowed
    else:
        prefilled_on = {block.prefill_worker_id for block in blocks if not block.overflow}
        assert prefilled_on == {"prefill-0"}
        assert {block.prefill_worker_id for block in overflowed} <= {"decode-0"}
        assert bool(overflowed) == (served.mode is ServingMode.HYBRID)
        # K/V moves exactly when prefill and decode were on different workers.
        assert moved == [block for block in blocks if block.decode_worker_id and not block.overflow]


async def test_sixteen_mixed_requests_at_once_equal_solo(served: Served) -> None:
    choose = random.Random(16)
    strategies = (ConfidenceThreshold(0.3), ConfidenceQuota(3), ConfidenceDynamic(1.0), RandomReveal())
    base = GenerationInput(text=None, token_ids=(1,), max_tokens=1)
    requests = [
        replace(
            base,
            token_ids=tuple(choose.randrange(400) for _ in range(choose.randrange(1, 90))),
            max_tokens=choose.randrange(1, 100),
            block_length_tokens=choose.choice((5, 8, 16, 32)),
            cache_mode=list(CacheMode)[index % 3],
            strategy=strategies[index % 4],
            temperature=choose.choice((0.0, 0.7)),
            seed=choose.choice((None, index)),
            ignore_eos=bool(index % 2),
        )
        for index in range(16)
    ]
    outputs = await asyncio.gather(*(ask(served.cluster, wanted) for wanted in requests))
    check = LocalCheck.load(served.cluster.config.model_dir, requests, device="cpu", dtype="auto")
    verdicts = [check.verdict(wanted, output) for wanted, output in zip(requests, outputs, strict=True)]
    assert verdicts == ["yes"] * 16
    await eventually(lambda: all_pages_free(served.cluster))


async def test_abandoned_requests_give_their_pages_back(served: Served) -> None:
    wanted = GenerationInput(
        text=None, token_ids=(1, 2, 3), max_tokens=256, strategy=ConfidenceQuota(1), ignore_eos=True
    )
    choose = random.Random(3)
    calls = [asyncio.create_task(ask(served.cluster, wanted)) for _ in range(12)]
    for call in calls:
        await asyncio.sleep(choose.uniform(0.0, 0.1))
        call.cancel()
    assert {type(result) for result in await asyncio.gather(*calls, return_exceptions=True)} == {
        asyncio.CancelledError,
    }
    await eventually(lambda: all_pages_free(served.cluster))
    after = await ask(served.cluster, replace(wanted, max_tokens=8))
    assert len(after.token_ids) == 8


async def test_every_service_says_that_it_leaked_nothing(served: Served) -> None:
    await eventually(lambda: all_pages_free(served.cluster))
    # Whatever is held for nobody by now counts as leaked after this.
    await asyncio.sleep(GRACE_S + 2 * LOOK_INTERVAL_S)
    cluster = served.cluster
    command = [sys.executable, "-m", "common.cli", "status", "--metrics", "--json"]
    command += ["--address", cluster.scheduler_address, "--gateway", cluster.gateway_address]
    command += ["--kv-store", cluster.kv_store_address]
    status = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await status.communicate()
    assert status.returncode == 0
    services = json.loads(output)["metrics"]
    assert services.keys() == cluster.addresses.keys()
    watched = {instrument.about.name for instrument in WATCHED}
    for service, readings in services.items():
        values = {reading["name"]: reading["value"] for reading in readings if reading["name"] in watched}
        assert set(values.values()) == {0}, (service, values)
        assert {name for name in values if "leaked" in name} == {name for name in watched if "leaked" in name}, service


async def test_nothing_was_restarted(served: Served) -> None:
    assert not any(served.cluster.restarts.values())
