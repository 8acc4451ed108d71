"""How long prompts and outputs are: one small class per distribution, all drawn by inverse transform."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from common.errors import ConfigError

_NORMAL = NormalDist()
_P99_SIGMAS = _NORMAL.inv_cdf(0.99)

SPEC_FORMS = "fixed:N, uniform:LOW:HIGH, zipf:EXPONENT:MAX, lognormal:MEDIAN:P99"


class Lengths(Protocol):
    """A distribution over whole token counts, each >= 1."""

    def draw(self, rng: random.Random) -> int:
        """One length in tokens; uses exactly one number of `rng`."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """Always `tokens`."""

    tokens: int

    def draw(self, rng: random.Random) -> int:
        """See `Lengths.draw`."""
        rng.random()
        return self.tokens


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Every whole number of `low_tokens` .. `high_tokens` equally often."""

    low_tokens: int
    high_tokens: int

    def draw(self, rng: random.Random) -> int:
        """See `Lengths.draw`."""
        return self.low_tokens + int(rng.random() * (self.high_tokens - self.low_tokens + 1))


class ZipfLengths:
    """P(n) proportional to n ** -exponent for n in 1 .. max_tokens."""

    def __init__(self, exponent: float, max_tokens: int) -> None:
        self._cumulative = list(itertools.accumulate(n**-exponent for n in range(1, max_tokens + 1)))

    def draw(self, rng: random.Random) -> int:
        """See `Lengths.draw`."""
        return 1 + bisect.bisect_right(self._cumulative, rng.random() * self._cumulative[-1], hi=self.max_tokens - 1)

    @property
    def max_tokens(self) -> int:
        """Largest length."""
        return len(self._cumulative)


@dataclass(frozen=True, slots=True)
class LognormalLengths:
    """Lognormal with that median and 99th percentile, rounded."""

    median_tokens: float
    p99_tokens: float

    def draw(self, rng: random.Random) -> int:
        """See `Lengths.draw`."""
        sigma = math.log(self.p99_tokens / self.median_tokens) / _P99_SIGMAS
        # random() may return 0, of which there is no quantile.
        z = _NORMAL.inv_cdf(max(rng.random(), 2.0**-54))
        return max(1, round(self.median_tokens * math.exp(sigma * z)))


def parse_lengths(text: str, *, option: str) -> Lengths:
    """A distribution from its command line form (`SPEC_FORMS`). Raises ConfigError naming `option`."""
    name, *words = text.split(":")
    try:
        numbers = [float(word) for word in words]
        if name not in _PARSERS or not all(math.isfinite(number) for number in numbers):
            raise ValueError
        return _PARSERS[name](*numbers)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{option}: {text!r} is not a length distribution; allowed: {SPEC_FORMS}, in tokens, at least 1"
        ) from None


def _fixed(tokens: float) -> Lengths:
    return FixedLengths(_whole(tokens))


def _uniform(low: float, high: float) -> Lengths:
    if low > high:
        raise ValueError
    return UniformLengths(_whole(low), _whole(high))


def _zipf(exponent: float, max_tokens: float) -> Lengths:
    if exponent < 0 or max_tokens > 1_000_000:
        raise ValueError
    return ZipfLengths(exponent, _whole(max_tokens))


def _lognormal(median: float, p99: float) -> Lengths:
    if not 1 <= median <= p99:
        raise ValueError
    return LognormalLengths(median, p99)


def _whole(tokens: float) -> int:
    if tokens < 1 or tokens != int(tokens):
        raise ValueError
    return int(tokens)


_PARSERS: dict[str, Callable[..., Lengths]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "zipf": _zipf,
    "lognormal": _lognormal,
}
