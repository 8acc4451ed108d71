"""One sampling step: golden cases, the rules one by one, and independence from whatever else is sampled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.core.params import (
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
    SamplingParams,
)
from common.engine.randomness import draw, mix64
from common.engine.sampler import SampledBlock, choose, propose, sample
from tests.engine.checkpoints import GOLDEN_DIR
from tests.engine.runs import STRATEGIES

MASK = 11


def block(strategy: RevealStrategy, positions, *, temperature=0.0, seed=0, number=0, step=0) -> SampledBlock:
    sampling = SamplingParams(strategy=strategy, temperature=temperature, seed=seed)
    return SampledBlock(sampling=sampling, block=number, step=step, positions=tuple(positions))


def golden_cases() -> list[tuple[int, RevealStrategy, int]]:
    document = json.loads((GOLDEN_DIR / "sampler.json").read_text())
    makers: dict[str, Callable[[dict[str, Any]], RevealStrategy]] = {
        "conf_threshold": lambda case: ConfidenceThreshold(case["confidence_threshold"]),
        "conf_quota": lambda case: ConfidenceQuota(case["fixed_unmask_quota"]),
        "conf_dynamic": lambda case: ConfidenceDynamic(case["dynamic_unmask_factor"]),
    }
    return [(case["case"], makers[case["strategy"]](case), case["unmasked"]) for case in document["cases"]]


@pytest.mark.parametrize(("number", "strategy", "unmasked"), golden_cases())
def test_golden_case(number, strategy, unmasked):
    tensors = load_file(GOLDEN_DIR / "sampler.safetensors")
    mask = json.loads((GOLDEN_DIR / "sampler.json").read_text())["mask_token_id"]
    before, after = tensors[f"before_{number}"], tensors[f"after_{number}"].tolist()
    masked = (before == mask).nonzero().flatten().tolist()
    (revealed,) = sample(tensors[f"logits_{number}"][masked], [block(strategy, masked)], mask_token_id=mask)
    canvas = before.tolist()
    for position, token in zip(revealed.positions, revealed.tokens, strict=True):
        canvas[position] = token
    assert canvas == after and len(revealed.positions) == unmasked


def test_there_are_thirty_six_golden_cases():
    assert len(golden_cases()) == 36


@pytest.mark.parametrize(
    ("strategy", "confidences", "expected"),
    [
        (ConfidenceThreshold(0.9), [0.95, 0.2, 0.9, 0.91], [0, 2, 3]),
        # float32 would round both the threshold and this confidence to the same number
        (ConfidenceThreshold(0.9), [0.1, 0.89999999], [1]),
        (ConfidenceThreshold(0.9), [0.95, 0.89999999], [0]),
        (ConfidenceThreshold(1.0), [0.5, 0.7, 0.7], [1]),
        (ConfidenceThreshold(0.0), [0.5, 0.0], [0, 1]),
        (ConfidenceQuota(2), [0.1, 0.7, 0.7, 0.7], [1, 2]),
        (ConfidenceQuota(9), [0.1, 0.7], [0, 1]),
        # bounds 1 - f/3, 1 - f/4, ... = 2/3, 3/4, 4/5 for f = 1
        (ConfidenceDynamic(1.0), [0.76, 0.1, 0.9], [0, 2]),
        (ConfidenceDynamic(1.0), [0.74, 0.7, 0.9], [0, 2]),
        (ConfidenceDynamic(1.0), [0.8, 0.9, 0.81, 0.79], [0, 1, 2]),
        (ConfidenceDynamic(1.0), [0.1, 0.2], [1]),
        (ConfidenceDynamic(4.0), [0.1, 0.2, 0.3], [0, 1, 2]),
    ],
)
def test_what_is_revealed(strategy, confidences, expected):
    assert choose(block(strategy, range(len(confidences))), confidences) == expected


def test_random_reveal_is_uniform_over_counts_and_positions():
    counts = [0] * 4
    hits = [0] * 4
    for step in range(4000):
        chosen = choose(block(RandomReveal(), range(4), step=step, seed=3), [0.9, 0.1, 0.1, 0.1])
        counts[len(chosen) - 1] += 1
        for index in chosen:
            hits[index] += 1
    # 4 000 fair draws: 1 000 of each count, each position in 2 500 (five standard deviations: 137 and 158)
    assert all(abs(count - 1000) < 137 for count in counts) and all(abs(hit - 2500) < 158 for hit in hits)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 50.0])
def test_the_mask_id_is_never_proposed(temperature):
    logits = torch.zeros(64, 16)
    logits[:, MASK] = 30.0
    tokens, confidences = propose(logits, temperatures=[temperature] * 64, keys=list(range(64)), mask_token_id=MASK)
    assert MASK not in tokens
    # the softmax still runs over the whole vocabulary, mask included
    assert confidences == pytest.approx([1.0 / (15.0 + math.exp(30.0))] * 64)


def test_equal_logits_propose_the_lowest_id():
    logits = torch.zeros(3, 8)
    logits[1, [5, 7]] = 2.0
    logits[2, 0] = -1.0
    tokens, _ = propose(logits, temperatures=[0.0] * 3, keys=[0] * 3, mask_token_id=2)
    assert tokens == [0, 5, 1]


def test_confidence_is_the_plain_softmax_in_float64_whatever_the_temperature():
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    tokens, confidences = propose(logits, temperatures=[2.0] * 5, keys=[1, 2, 3, 4, 5], mask_token_id=MASK)
    for row, token, confidence in zip(logits.tolist(), tokens, confidences, strict=True):
        assert confidence == pytest.approx(math.exp(row[token]) / sum(map(math.exp, row)), rel=1e-12)


def gumbel_max(row: list[float], temperature: float, key: int) -> int:
    """Argmax of exp(logit) / (-ln u)^T, in logarithms and plain Python: an independent statement of the rule."""
    scores = []
    for index, logit in enumerate(row):
        bits = mix64((key + (index + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 12
        uniform = (bits + 0.5) / 2**52
        scores.append(-math.inf if index == MASK else logit - temperature * math.log(-math.log(uniform)))
    return scores.index(max(scores))


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0, 40.0])
def test_temperature_is_gumbel_max_on_counter_noise(temperature):
    logits = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)) * 3.0
    item = block(ConfidenceQuota(40), range(100, 140), temperature=temperature, seed=2**64 - 1, number=5, step=3)
    (revealed,) = sample(logits, [item], mask_token_id=MASK)
    keys = [draw(2**64 - 1, 5, 3, 0, position) for position in range(100, 140)]
    expected = [gumbel_max(row, temperature, key) for row, key in zip(logits.tolist(), keys, strict=True)]
    assert list(revealed.tokens) == expected


def test_sampled_tokens_follow_the_tempered_softmax():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).repeat(6000, 1)
    keys = [draw(9, row) for row in range(6000)]
    tokens, _ = propose(
        torch.cat([logits, torch.full((6000, 1), -50.0)], dim=1), temperatures=[0.5] * 6000, keys=keys, mask_token_id=3
    )
    weights = [0.25, 0.09, 0.04]
    for token, weight in enumerate(weights):
        # p = w / 0.38; five standard deviations of 6 000 draws are at most 194
        assert abs(tokens.count(token) - 6000 * weight / sum(weights)) < 194


def test_extreme_temperatures_stay_defined():
    logits = torch.tensor([[1000.0, -1000.0, 999.0, 0.0]]).repeat(50, 1)
    keys = [draw(1, row) for row in range(50)]
    cold, _ = propose(logits, temperatures=[1e-300] * 50, keys=keys, mask_token_id=3)
    hot, _ = propose(logits, temperatures=[1e300] * 50, keys=keys, mask_token_id=3)
    assert set(cold) == {0} and set(hot) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocab", [96, 40_000])
def test_sampling_together_equals_sampling_alone(temperature, vocab):
    """Invariant 19. The larger vocabulary makes torch use threads and the sampler several chunks."""
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(4)
    items = [
        block(strategy, range(9 * number, 9 * number + size), temperature=temperature, seed=number, step=number)
        for number, (strategy, size) in enumerate(zip(STRATEGIES, [1, 32, 50, 32, 31], strict=True))
    ]
    logits = torch.randn(sum(len(item.positions) for item in items), vocab, generator=generator) * 2.0
    together = sample(logits, items, mask_token_id=MASK)
    first = 0
    for item, revealed in zip(items, together, strict=True):
        rows = logits[first : first + len(item.positions)]
        first += len(item.positions)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert sample(rows.clone(), [item], mask_token_id=MASK) == [revealed]


@pytest.mark.parametrize("change", [{"seed": 1}, {"number": 1}, {"step": 1}])
def test_noise_is_keyed_by_seed_block_and_step(change):
    logits = torch.zeros(32, 100)
    base = sample(logits, [block(ConfidenceQuota(32), range(32), temperature=1.0)], mask_token_id=MASK)
    other = sample(logits, [block(ConfidenceQuota(32), range(32), temperature=1.0, **change)], mask_token_id=MASK)
    assert base != other


def test_a_positions_noise_does_not_depend_on_which_others_are_masked():
    logits = torch.randn(32, 100, generator=torch.Generator().manual_seed(0))
    (whole,) = sample(logits, [block(ConfidenceQuota(32), range(32), temperature=1.0)], mask_token_id=MASK)
    (part,) = sample(logits[9:20], [block(ConfidenceQuota(32), range(9, 20), temperature=1.0)], mask_token_id=MASK)
    assert part.tokens == whole.tokens[9:20]


def test_sampling_leaves_the_logits_alone():
    logits = torch.randn(4, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    sample(logits, [block(ConfidenceQuota(1), range(4), temperature=1.0)], mask_token_id=MASK)
    assert torch.equal(logits, before)
