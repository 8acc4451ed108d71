"""The mean of a measurement that goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RunningMean:
    """An exponential mean: the newest value counts for `weight`. `value` is 0 before the first, `known` after it."""

    weight: float
    value: float = 0.0
    known: bool = False

    def add(self, value: float) -> None:
        """Take in the newest value; the first one is the mean."""
        self.value = self.value + self.weight * (value - self.value) if self.known else value
        self.known = True
