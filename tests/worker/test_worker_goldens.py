"""Real workers over loopback give the reference implementations' tokens, with their number of forwards."""

from __future__ import annotations

import pytest

from common.core.ids import Role
from sangam.v1 import types_pb2
from tests.engine.golden import GoldenRun, golden_runs
from tests.metrics.measured import Growth
from tests.worker.harness import Outcome, run_colocated, run_disaggregated, workers

RUNS = [run for run in golden_runs() if run.name in ("llada-gqa", "dream-gqa")]


def check(outcome: Outcome, run: GoldenRun) -> None:
    prompt = len(run.spec.prompt_token_ids)
    assert outcome.token_ids == run.canvas[prompt:]
    assert outcome.prefill_forwards + outcome.decode_forwards == run.forwards
    assert outcome.finish == types_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize("model", ["llada-gqa", "dream-gqa"])
@pytest.mark.parametrize(("kv_transport", "path"), [("tcp", "tcp"), ("ucx", "ucx"), ("auto", "direct")])
async def test_prefill_then_decode_gives_the_golden_tokens(model: str, kv_transport: str, path: str) -> None:
    growth = Growth()
    async with workers(Role.PREFILL, Role.DECODE, model=model, kv_transport=kv_transport) as (prefill, decode):
        for run in (run for run in RUNS if run.name == model):
            check(await run_disaggregated(prefill, decode, run.spec), run)
    moved_bytes = {name: growth.of("sangam_kv_transfer_bytes_total", path=name) for name in ("tcp", "ucx", "direct")}
    assert {name for name, moved in moved_bytes.items() if moved} == {path}


@pytest.mark.parametrize("model", ["llada-gqa", "dream-gqa"])
async def test_a_local_prefill_gives_the_golden_tokens(model: str) -> None:
    async with workers(Role.DECODE, model=model) as (decode,):
        for run in (run for run in RUNS if run.name == model):
            check(await run_colocated(decode, run.spec), run)
