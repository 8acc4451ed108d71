"""The online audit on a real cluster: what it exports is what a client finds who compares for himself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from common.cli.cluster_metrics import fetch_readings
from common.core.ids import ServingMode
from common.core.params import CacheMode, ConfidenceQuota
from common.generation_input import GenerationInput
from tests.integration.cluster_help import all_pages_free, ask, eventually, golden_model, running_cluster

REQUESTS = 6


async def test_the_exported_agreement_is_that_of_the_two_answers(tmp_path: Path) -> None:
    model, settings = (
        golden_model("llada-gqa", tmp_path / "model"),
        {"mode": ServingMode.COLOCATED, "prefill_workers": 0},
    )
    async with running_cluster(model, tmp_path / "run", gateway_options=("--audit-rate=1",), **settings) as cluster:

        async def counted(name: str, **labels: str) -> float:
            readings = await fetch_readings(cluster.gateway_address) or []
            wanted = tuple(sorted(labels.items()))
            return sum(r.value for r in readings if (r.name, r.labels) == (name, wanted) and isinstance(r.value, float))

        async def all_audited() -> bool:
            outcomes = [
                await counted("sangam_audits_total", cache_mode="dual", outcome=outcome)
                for outcome in ("equal", "different")
            ]
            return sum(outcomes) == REQUESTS

        base = GenerationInput(
            text=None, token_ids=(1,), max_tokens=48, block_length_tokens=16, strategy=ConfidenceQuota(2)
        )
        wanted = [
            replace(base, token_ids=tuple(range(5 + 7 * index)), cache_mode=CacheMode.DUAL, ignore_eos=True)
            for index in range(REQUESTS)
        ]
        cached = await asyncio.gather(*(ask(cluster, one) for one in wanted))
        uncached = await asyncio.gather(*(ask(cluster, replace(one, cache_mode=CacheMode.NONE)) for one in wanted))
        await eventually(all_audited, timeout_s=90.0)
        same = sum(
            one == other
            for first, second in zip(cached, uncached, strict=True)
            for one, other in zip(first.token_ids, second.token_ids, strict=True)
        )
        different = REQUESTS * 48 - same
        assert different, "the oracle sees what caching changes"
        assert await counted("sangam_audit_tokens_total", cache_mode="dual", agreement="same") == same
        assert await counted("sangam_audit_tokens_total", cache_mode="dual", agreement="different") == different
        await eventually(lambda: all_pages_free(cluster))
