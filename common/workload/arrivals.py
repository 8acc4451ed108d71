"""When requests come. Intervals are drawn from the whole distribution, never capped, so the mean rate is right."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.errors import ConfigError

SPEC_FORMS = "poisson, gamma:CV, trace"


class Arrivals(Protocol):
    """A stream of arrival times in seconds, ascending from 0 or later; it may end."""

    def times_s(self, rng: random.Random) -> Iterator[float]:
        """Arrival times, each rounded to a microsecond: the last digit of a logarithm differs between machines."""
        ...


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Exponential intervals with mean 1 / `qps` seconds."""

    qps: float

    def times_s(self, rng: random.Random) -> Iterator[float]:
        """See `Arrivals.times_s`; endless."""
        return _accumulate(-math.log(1.0 - rng.random()) / self.qps for _ in itertools.count())


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Gamma intervals with mean 1 / `qps` seconds and coefficient of variation `cv` (1 is Poisson, more is bursty)."""

    qps: float
    cv: float

    def times_s(self, rng: random.Random) -> Iterator[float]:
        """See `Arrivals.times_s`; endless."""
        shape = 1.0 / (self.cv * self.cv)
        scale_s = 1.0 / (self.qps * shape)
        return _accumulate(rng.gammavariate(shape, scale_s) for _ in itertools.count())


class TraceArrivals:
    """Recorded times, moved to start at 0; ends with the trace. With `qps`, stretched to that mean rate."""

    def __init__(self, times_s: Sequence[float], *, qps: float | None = None) -> None:
        first_s = times_s[0] if times_s else 0.0
        span_s = times_s[-1] - first_s if times_s else 0.0
        stretch = 1.0
        if qps is not None and span_s > 0:
            stretch = (len(times_s) - 1) / (qps * span_s)
        self._times_s = [round((time_s - first_s) * stretch, 6) for time_s in times_s]

    def times_s(self, rng: random.Random) -> Iterator[float]:
        """See `Arrivals.times_s`."""
        return iter(self._times_s)


def parse_arrivals(text: str, *, qps: float, option: str) -> PoissonArrivals | GammaArrivals:
    """`poisson` or `gamma:CV` (`trace` is the caller's). Raises ConfigError naming `option`."""
    if text == "poisson":
        return PoissonArrivals(qps)
    name, _, word = text.partition(":")
    try:
        cv = float(word)
        if name != "gamma" or not 0 < cv <= 100:
            raise ValueError
    except ValueError:
        raise ConfigError(f"{option}: {text!r} is not known; allowed: {SPEC_FORMS}, with 0 < CV <= 100") from None
    return GammaArrivals(qps, cv)


def _accumulate(intervals_s: Iterator[float]) -> Iterator[float]:
    for time_s in itertools.accumulate(intervals_s):
        yield round(time_s, 6)
