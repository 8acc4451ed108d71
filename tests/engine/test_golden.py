"""Token for token, forward for forward, what the public reference implementations produce."""

from __future__ import annotations

import pytest

from common.core.params import CacheMode
from common.core.work import FinishReason
from common.engine.generator import LocalGenerator
from tests.engine.checkpoints import GOLDEN_NAMES
from tests.engine.golden import GoldenRun, full_logits, golden_runs

RUNS = golden_runs()


def test_there_are_fifteen_runs_for_each_checkpoint():
    assert len(RUNS) == 45


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_full_canvas_logits(golden_engine, name):
    canvas, expected = full_logits(name)
    assert (golden_engine(name).canvas_logits(canvas) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.label)
def test_golden_run(golden_engine, run: GoldenRun):
    result = LocalGenerator(golden_engine(run.name)).run(run.spec)
    assert run.spec.prompt_token_ids + result.token_ids == run.canvas
    assert result.prefill_forwards + result.decode_forwards == run.forwards
    assert result.prefill_forwards == run.spec.blocks
    assert result.finish_reason is FinishReason.LENGTH


def test_goldens_cover_every_cache_mode():
    assert {run.spec.cache_mode for run in RUNS} == set(CacheMode)
