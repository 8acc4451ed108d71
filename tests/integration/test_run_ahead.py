"""Workers of a whole cluster run ahead of their calls, and nobody can tell by the answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from common.cli.cluster import Cluster
from common.cli.cluster_metrics import fetch_all, total
from common.cli.default_model import default_model_dir
from common.cli.local_check import LocalCheck
from common.core.ids import ServingMode
from common.core.params import CacheMode, ConfidenceQuota
from common.generation_input import GenerationInput
from common.metrics.catalogue import AHEAD_FORWARDS_DISCARDED, AHEAD_FORWARDS_USED
from tests.integration.cluster_help import all_pages_free, ask, eventually, running_cluster

SUM = GenerationInput(text="What is 27 plus 48?", token_ids=None, max_tokens=256, ignore_eos=True)
"""Eight blocks, and its prefills finish most of them."""


async def counted(cluster: Cluster) -> tuple[float, float]:
    """Forwards that ran ahead in the workers' present lives: those that were used, and those that were not."""
    found = (await fetch_all(cluster.addresses)).values()
    used, discarded = (
        sum(total(readings, counter.about.name) for readings in found if readings is not None)
        for counter in (AHEAD_FORWARDS_USED, AHEAD_FORWARDS_DISCARDED)
    )
    return used, discarded


@pytest.mark.parametrize(
    ("mode", "prefill_workers", "decode_workers"),
    [(ServingMode.HYBRID, 1, 1), (ServingMode.COLOCATED, 0, 2), (ServingMode.DISAGGREGATED, 2, 1)],
)
async def test_one_request_or_many_come_out_the_same(
    mode: ServingMode, prefill_workers: int, decode_workers: int, tmp_path: Path
) -> None:
    wanted = [
        SUM,
        *(replace(SUM, max_tokens=96, cache_mode=cache_mode, temperature=0.7, seed=3) for cache_mode in CacheMode),
        replace(SUM, max_tokens=96, strategy=ConfidenceQuota(8)),
        replace(SUM, max_tokens=96, strategy=ConfidenceQuota(32), text="What is 1 plus 2?"),
    ]
    check = LocalCheck.load(default_model_dir(), wanted, device="cpu", dtype="auto")
    workers = {"prefill_workers": prefill_workers, "decode_workers": decode_workers}
    async with running_cluster(default_model_dir(), tmp_path / "run", mode=mode, **workers) as cluster:
        output = await ask(cluster, SUM)
        assert check.verdict(SUM, output) == "yes"
        assert output.attempts == output.prefill_forwards == 8
        # With idle workers to choose from, a request's blocks come to the same one.
        used, discarded = await counted(cluster)
        assert used > discarded
        outputs = await asyncio.gather(*(ask(cluster, one) for one in wanted * 2))
        assert [check.verdict(one, output) for one, output in zip(wanted * 2, outputs, strict=True)] == ["yes"] * 12
        await eventually(lambda: all_pages_free(cluster))
        assert not any(cluster.restarts.values())
