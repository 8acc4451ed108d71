"""Length distributions and the named workloads."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from common.errors import ConfigError
from common.workload.arrivals import PoissonArrivals
from common.workload.lengths import parse_lengths
from common.workload.workload import NAMED_LENGTHS, LengthRule, draw_requests

DRAWS = 20_000


def draw(spec: str, count: int = DRAWS) -> list[int]:
    lengths, rng = parse_lengths(spec, option="--x"), random.Random(5)
    return sorted(lengths.draw(rng) for _ in range(count))


def test_fixed():
    assert draw("fixed:7", 5) == [7] * 5


def test_uniform_reaches_both_ends_evenly():
    counts = Counter(draw("uniform:3:6"))
    assert set(counts) == {3, 4, 5, 6}
    assert all(count == pytest.approx(DRAWS / 4, rel=0.1) for count in counts.values())


def test_zipf_follows_its_law():
    counts = Counter(draw("zipf:1:4"))
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for length in range(1, 5):
        assert counts[length] / DRAWS == pytest.approx(1 / length / total, rel=0.1)


def test_lognormal_has_its_median_and_99th_percentile():
    values = draw("lognormal:795:2007")
    assert values[DRAWS // 2] == pytest.approx(795, rel=0.02)
    assert values[int(0.99 * DRAWS)] == pytest.approx(2007, rel=0.05)


@pytest.mark.parametrize(
    "spec",
    [
        *("", "fixed", "fixed:0", "fixed:1.5", "fixed:1:2", "fixed:inf", "fixed:nan", "pareto:1:2"),
        *("uniform:5:4", "uniform:0:4", "zipf:-1:5", "zipf:1:0"),
        *("lognormal:10", "lognormal:10:5", "lognormal:0:5"),
    ],
)
def test_bad_specs_name_the_option_and_the_forms(spec: str):
    with pytest.raises(ConfigError, match=r"--prompt-tokens: .*allowed: fixed:N, uniform:LOW:HIGH, zipf"):
        parse_lengths(spec, option="--prompt-tokens")


@pytest.mark.parametrize(("name", "prompt", "output"), [("sharegpt", 795, 596), ("arxiv", 2827, 890)])
def test_named_workloads_have_the_paper_s_medians_within_a_context(name: str, prompt: int, output: int):
    pairs = list(itertools.islice(NAMED_LENGTHS[name].draws(random.Random(2)), DRAWS))
    assert sorted(p for p, _ in pairs)[DRAWS // 2] == pytest.approx(prompt, rel=0.03)
    # The cut takes a little off the outputs that follow long prompts.
    assert 0.93 * output <= sorted(o for _, o in pairs)[DRAWS // 2] <= 1.02 * output
    assert all(p >= 1 and o >= 1 and p + o <= 4096 for p, o in pairs)


def test_scaling_outputs_keeps_prompts():
    def draw_pairs(rule: LengthRule) -> list[tuple[int, int]]:
        model = replace(NAMED_LENGTHS["sharegpt"], rule=rule)
        return list(itertools.islice(model.draws(random.Random(2)), 200))

    plain, half = draw_pairs(LengthRule()), draw_pairs(LengthRule(output_scale=0.5))
    assert [p for p, _ in plain] == [p for p, _ in half]
    assert all(abs(h - o / 2) <= 0.5 for (_, o), (_, h) in zip(plain, half, strict=True))


@pytest.mark.parametrize(
    ("prompt", "output", "expected"), [(10, 100, (10, 40)), (10, 3, (10, 2)), (70, 100, (70, 30)), (200, 9, (99, 1))]
)
def test_outputs_are_stretched_then_cut(prompt: int, output: int, expected: tuple[int, int]):
    rule = LengthRule(output_scale=0.5, max_output_tokens=40, max_total_tokens=100)
    assert rule.apply(prompt, output) == expected


def test_another_rate_meets_the_same_requests():
    def lengths(qps: float) -> list[tuple[int, int]]:
        requests = draw_requests(arrivals=PoissonArrivals(qps), lengths=NAMED_LENGTHS["arxiv"], requests=50, seed=9)
        return [(request.prompt_tokens, request.output_tokens) for request in requests]

    assert lengths(1.0) == lengths(20.0)


def test_recorded_lengths_end_the_workload():
    requests = draw_requests(arrivals=PoissonArrivals(1.0), lengths=[(5, 6), (7, 8)], requests=10, seed=0)
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(5, 6), (7, 8)]
