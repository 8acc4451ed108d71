"""Random numbers by counter: a function of what they are for, not of the order in which they are asked for."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(*words: int) -> int:
    """64 well-mixed bits of the words (splitmix64's finaliser after each)."""
    state = 0
    for word in words:
        state = (state + word + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def unit(*words: int) -> float:
    """A number in [0, 1), exact on every machine."""
    return (mix(*words) >> 11) * 2.0**-53


class Draws:
    """A stream of such numbers."""

    def __init__(self, *seed: int) -> None:
        self._seed = mix(*seed)
        self._count = 0

    def unit(self) -> float:
        """The next number in [0, 1)."""
        self._count += 1
        return unit(self._seed, self._count)
