"""Conversions into a smaller unit: "2*60=120, 120+5=125 minutes"."""

from __future__ import annotations

import random
from dataclasses import dataclass

from common.corpus.question import Problem


@dataclass(frozen=True, slots=True)
class _Unit:
    """`factor` small ones make one large one; sizes up to `most` are asked for."""

    large: str
    small: str
    factor: int
    most: int


_UNITS = (
    _Unit("hours", "minutes", 60, 12),
    _Unit("minutes", "seconds", 60, 12),
    _Unit("days", "hours", 24, 9),
    _Unit("weeks", "days", 7, 12),
    _Unit("years", "months", 12, 12),
    _Unit("feet", "inches", 12, 12),
    _Unit("centimeters", "millimeters", 10, 99),
    _Unit("meters", "centimeters", 100, 99),
    _Unit("kilometers", "meters", 1000, 99),
    _Unit("kilograms", "grams", 1000, 99),
)
_WHOLE = (
    "How many {small} are {n} {large}?",
    "Convert {n} {large} to {small}.",
    "How many {small} are in {n} {large}?",
)
_MIXED = (
    "How many {small} are {n} {large} and {m} {small}?",
    "Convert {n} {large} and {m} {small} to {small}.",
    "How many {small} are in {n} {large} and {m} {small}?",
)
_MOST_LARGE, _MOST_SMALL = 12, 9


def draw_units(rng: random.Random) -> Problem:
    """A whole number of large units, or (for small factors) large and small ones together."""
    unit = rng.choice(_UNITS)
    small, large, factor = unit.small, unit.large, unit.factor
    if factor > 100 or rng.random() < 0.4:
        n = rng.randint(2, unit.most)
        return Problem(
            key=f"units {large} {n}",
            prompt=rng.choice(_WHOLE).format(n=n, large=large, small=small),
            answer=f"{n}*{factor}={n * factor} {small}",
        )
    n, m = rng.randint(2, min(unit.most, _MOST_LARGE)), rng.randint(2, min(factor - 1, _MOST_SMALL))
    return Problem(
        key=f"units {large} {n} {m}",
        prompt=rng.choice(_MIXED).format(n=n, m=m, large=large, small=small),
        answer=f"{n}*{factor}={n * factor}, {n * factor}+{m}={n * factor + m} {small}",
    )
