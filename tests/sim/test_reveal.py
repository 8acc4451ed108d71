"""The model of what a forward reveals."""

from __future__ import annotations

from statistics import fmean

import pytest

from common.core.ids import BlockAttempt, RequestId
from common.core.params import CacheMode, ConfidenceThreshold, SamplingParams
from common.core.work import BlockWork, StepDelta
from common.sim.draws import Draws, mix, unit
from common.sim.reveal import RevealModel, SimBlock


def work(seed: int, attempt: int = 0, block: int = 1) -> BlockWork:
    return BlockWork(
        attempt=BlockAttempt(RequestId("r"), block, attempt),
        prompt_token_ids=(0,) * 10,
        generated_token_ids=(0,) * 32 * block,
        max_tokens=96,
        block_length_tokens=32,
        cache_mode=CacheMode.DUAL,
        sampling=SamplingParams(strategy=ConfidenceThreshold(0.9), temperature=0.0, seed=seed),
        ignore_eos=True,
    )


def denoise(block: SimBlock) -> list[StepDelta]:
    deltas: list[StepDelta] = []
    while sum(len(delta.positions) for delta in deltas) < 32:
        deltas.append(block.advance())
    return deltas


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.0, 12.0])
def test_mean_tokens_per_step(mean: float):
    model = RevealModel(mean)
    counts = [model.count(seed, 0, 0) for seed in range(20_000)]
    assert min(counts) == 1
    assert fmean(counts) == pytest.approx(mean, rel=0.03)


def test_every_position_of_the_block_is_revealed_once_in_order():
    deltas = denoise(SimBlock(work(3), RevealModel(3.0), None))
    assert [position for delta in deltas for position in delta.positions] == list(range(32, 64))
    assert [delta.step for delta in deltas] == list(range(len(deltas)))
    assert all(len(delta.token_ids) == len(delta.confidences) == len(delta.positions) for delta in deltas)


def test_a_repeated_attempt_reveals_the_same():
    model = RevealModel(3.0)
    first = denoise(SimBlock(work(3, attempt=0), model, None))
    assert denoise(SimBlock(work(3, attempt=5), model, None)) == first
    assert denoise(SimBlock(work(4, attempt=0), model, None)) != first


def test_a_decode_goes_on_where_the_prefill_ended():
    whole = denoise(SimBlock(work(3), RevealModel(3.0), None))
    rest = SimBlock(work(3), RevealModel(3.0), whole[0])
    assert [rest.advance() for _ in whole[1:]] == whole[1:]


def test_draws_are_the_same_on_every_machine():
    # splitmix64 of its own first state, as published with the algorithm.
    assert mix(0) == 0xE220A8397B1DCDAF
    assert unit(0) == (0xE220A8397B1DCDAF >> 11) / 2**53
    draws, again = Draws(1, 2), Draws(1, 2)
    values = [draws.unit() for _ in range(10_000)]
    assert values == [again.unit() for _ in range(10_000)]
    assert fmean(values) == pytest.approx(0.5, abs=0.01)
