"""Token budget and overload threshold left to the services (`auto`), in a whole cluster under load."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from common.cli.cluster import Cluster
from common.cli.cluster_metrics import fetch_all, total
from common.cli.local_check import LocalCheck
from common.core.defaults import DEFAULT_OVERLOAD_THRESHOLD_TOKENS
from common.core.params import ConfidenceQuota
from common.generation_input import GenerationInput
from common.metrics.catalogue import OVERLOAD_THRESHOLD_TOKENS, TOKEN_BUDGET_TOKENS, WANTED_BLOCKS
from sangam.v1 import types_pb2
from tests.integration.cluster_help import (
    all_pages_free,
    ask,
    eventually,
    random_model,
    running_cluster,
    state_of,
)


def questions(count: int) -> list[GenerationInput]:
    """Short and long ones, each of several blocks."""
    choose = random.Random(5)
    base = GenerationInput(text=None, token_ids=(1,), max_tokens=64, strategy=ConfidenceQuota(2), ignore_eos=True)
    return [
        replace(
            base,
            token_ids=tuple(choose.randrange(250) for _ in range(choose.choice((8, 120)))),
            temperature=0.7,
            seed=seed,
        )
        for seed in range(count)
    ]


async def test_both_adapt_say_so_and_change_no_token(tmp_path: Path) -> None:
    wanted = questions(24)
    settings = {"token_budget_tokens": "auto", "overload_threshold_tokens": "auto", "decode_workers": 2}
    # A full prefill worker makes prefills overflow: only what runs on a decode worker can tell its budget anything.
    target = {"worker_options": ("--target-decode-gap-s", "0.05", "--max-prefill-tokens-per-batch", "192")}
    async with running_cluster(random_model(tmp_path / "model"), tmp_path / "run", **settings, **target) as cluster:
        outputs = await asyncio.gather(*(ask(cluster, one) for one in wanted))
        check = LocalCheck.load(cluster.config.model_dir, wanted, device="cpu", dtype="auto")
        assert [check.verdict(one, output) for one, output in zip(wanted, outputs, strict=True)] == ["yes"] * 24
        await eventually(lambda: all_pages_free(cluster))

        state = await state_of(cluster)
        assert state.overload_threshold_adapts
        assert 1024 <= state.overload_threshold_tokens < DEFAULT_OVERLOAD_THRESHOLD_TOKENS
        deciders = [worker for worker in state.workers if worker.role == types_pb2.WORKER_ROLE_DECODE]
        assert all(worker.report.token_budget_adapts for worker in deciders)
        assert any(worker.report.wanted_blocks >= 2 for worker in deciders)

        # Gauges follow within half a second.
        await eventually(lambda: metrics_say_the_same(cluster))


async def metrics_say_the_same(cluster: Cluster) -> bool:
    state, readings = await state_of(cluster), await fetch_all(cluster.addresses)
    said = {"scheduler": {OVERLOAD_THRESHOLD_TOKENS: state.overload_threshold_tokens}}
    for worker in state.workers:
        if worker.role == types_pb2.WORKER_ROLE_DECODE:
            report = worker.report
            values = {WANTED_BLOCKS: report.wanted_blocks, TOKEN_BUDGET_TOKENS: report.token_budget_tokens}
            said[worker.life.worker_id] = values
    return all(
        total(readings[service] or (), gauge.about.name) == value
        for service, values in said.items()
        for gauge, value in values.items()
    )
