"""The short form of `make invariance`: one mode, with overflow and kills; and that a difference would be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.cli.generation_output import GenerationOutput
from common.core.ids import ServingMode
from common.core.params import CacheMode
from common.random_checkpoint import build_random_checkpoint
from tests.invariance.loaded_cluster import FLEETS, LoadedRun, run_loaded
from tests.invariance.solo import SoloAnswer, invariance_requests, solo_answers

QUESTIONS = 40
(HYBRID,) = (fleet for fleet in FLEETS if fleet.mode is ServingMode.HYBRID)


async def test_answers_under_load_with_overflow_and_kills_are_the_solo_answers(tmp_path):
    model_dir = tmp_path / "model"
    build_random_checkpoint(model_dir, chat=True)
    requests = invariance_requests(QUESTIONS)
    solo = solo_answers(model_dir, requests, on_answer=lambda done: None)
    answered: list[int] = []
    run = await run_loaded(HYBRID, model_dir, tmp_path / "run", requests, solo, device="cpu", on_answer=answered.append)
    assert run.problems == ()
    assert answered == list(range(1, QUESTIONS + 1))
    assert run.overflowed_prefills and run.retried_blocks and run.killed == HYBRID.killed


def test_the_requests_mix_everything_and_repeat_for_a_seed():
    requests = invariance_requests(420)
    assert requests == invariance_requests(420) != invariance_requests(420, seed=1)
    ways = {(one.cache_mode, one.block_length_tokens, one.strategy, one.temperature) for one in requests}
    assert len(ways) >= 3 * 4 * 6 * 2 and {one.cache_mode for one in requests} == set(CacheMode)
    assert len({one.text for one in requests}) == 420


OUTPUT = GenerationOutput(
    request_id="r",
    token_ids=(4, 2, 0),
    text="42",
    finish_reason="stop",
    seed=0,
    cache_mode="dual",
    prompt_tokens=3,
    prefill_forwards=1,
    decode_forwards=1,
    attempts=1,
    carried_tokens=0,
    time_to_first_commit_s=0.1,
    total_s=0.2,
    blocks=(),
)


@pytest.mark.parametrize("change", [{"token_ids": (4, 3, 0)}, {"text": "43"}, {"finish_reason": "length"}], ids=str)
def test_any_difference_is_told(change):
    solo = SoloAnswer(token_ids=(4, 2, 0), text="42", finish_reason="stop")
    assert solo.difference(OUTPUT) == ""
    (name,) = change
    assert solo.difference(replace(OUTPUT, **change)).startswith(f"{name} ")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"differences": ("q: token_ids",)}, "q: token_ids"),
        ({"overflowed_prefills": 0}, "0 prefills overflowed"),
        ({"retried_blocks": 0}, "no block had to be tried again"),
        ({"killed": ("decode-1",)}, "the load ended too early"),
    ],
    ids=str,
)
def test_a_run_without_what_it_should_show_proves_nothing(change, problem):
    run = LoadedRun(
        fleet=HYBRID,
        questions=40,
        differences=(),
        overflowed_prefills=3,
        retried_blocks=2,
        killed=HYBRID.killed,
        elapsed_s=1.0,
    )
    assert run.problems == ()
    (told,) = replace(run, **change).problems
    assert told.startswith("hybrid: ") and problem in told
