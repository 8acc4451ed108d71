"""Arrival processes: mean rate, spread, and traces."""

from __future__ import annotations

import itertools
import random
from statistics import fmean, pstdev

import pytest

from common.errors import ConfigError
from common.workload.arrivals import Arrivals, GammaArrivals, PoissonArrivals, TraceArrivals, parse_arrivals

REQUESTS = 40_000


def intervals(arrivals: Arrivals, count: int = REQUESTS) -> list[float]:
    times = [0.0, *itertools.islice(arrivals.times_s(random.Random(1)), count)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_poisson_has_the_mean_rate_and_long_intervals():
    gaps = intervals(PoissonArrivals(5.0))
    assert fmean(gaps) == pytest.approx(0.2, rel=0.02)
    assert pstdev(gaps) == pytest.approx(0.2, rel=0.02)
    # exp(-3) of all intervals are longer than three means: the prototype's cap would leave none.
    assert sum(gap > 0.6 for gap in gaps) / REQUESTS == pytest.approx(0.0498, rel=0.1)


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gamma_has_mean_and_coefficient_of_variation(cv: float):
    gaps = intervals(GammaArrivals(5.0, cv))
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.05)


def test_times_are_ascending_whole_microseconds():
    times = list(itertools.islice(PoissonArrivals(1000.0).times_s(random.Random(3)), 1000))
    assert times == sorted(times)
    assert all(time == round(time, 6) for time in times)


def test_a_trace_starts_at_zero_and_ends():
    assert list(TraceArrivals([10.0, 10.5, 13.0]).times_s(random.Random(0))) == [0.0, 0.5, 3.0]


def test_a_trace_can_be_stretched_to_a_rate():
    times = list(TraceArrivals([10.0, 10.5, 13.0], qps=2.0).times_s(random.Random(0)))
    assert times == [0.0, pytest.approx(0.5 / 3, abs=1e-6), 1.0]


@pytest.mark.parametrize("word", ["", "uniform", "gamma", "gamma:", "gamma:0", "gamma:x", "gamma:nan", "poisson:2"])
def test_unknown_arrivals_are_refused_by_name(word: str):
    with pytest.raises(ConfigError, match=r"--arrivals: .*allowed: poisson, gamma:CV, trace"):
        parse_arrivals(word, qps=1.0, option="--arrivals")


def test_arrivals_are_parsed():
    assert parse_arrivals("poisson", qps=2.0, option="") == PoissonArrivals(2.0)
    assert parse_arrivals("gamma:0.5", qps=2.0, option="") == GammaArrivals(2.0, 0.5)
