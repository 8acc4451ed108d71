"""Addition, subtraction and multiplication with the working shown, and comparison of two numbers.

The working goes column by column from the units, as on paper: 47+85 is "7+5=12, 4+8+1=13: 132".
"""

from __future__ import annotations

import random

from common.corpus.question import Problem

_ADDITION = ("{a}+{b}", "What is {a}+{b}?", "Add {a} and {b}.", "Compute {a}+{b}.", "How much is {a} plus {b}?")
_SUBTRACTION = (
    "{a}-{b}",
    "What is {a}-{b}?",
    "Subtract {b} from {a}.",
    "Compute {a}-{b}.",
    "How much is {a} minus {b}?",
)
_MULTIPLICATION = (
    "{a}*{b}",
    "What is {a}*{b}?",
    "Multiply {a} by {b}.",
    "Compute {a}*{b}.",
    "How much is {a} times {b}?",
)
_COMPARISON = {
    "larger": ("Which is larger, {a} or {b}?", "Which number is larger: {a} or {b}?", "Is {a} or {b} larger?"),
    "smaller": ("Which is smaller, {a} or {b}?", "Which number is smaller: {a} or {b}?", "Is {a} or {b} smaller?"),
}


def draw_addition(rng: random.Random) -> Problem:
    """Two numbers of two digits."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return _phrased(rng, _ADDITION, "+", a, b, f"{', '.join(_addition_columns(a, b))}: {a + b}")


def draw_subtraction(rng: random.Random) -> Problem:
    """A number of two digits less a smaller or equal one."""
    b, a = sorted((rng.randint(10, 99), rng.randint(10, 99)))
    return _phrased(rng, _SUBTRACTION, "-", a, b, f"{', '.join(_subtraction_columns(a, b))}: {a - b}")


def draw_multiplication(rng: random.Random) -> Problem:
    """A number of two digits times one digit: 69*6 is "9*6=54, 6*6=36, 36+5=41: 414"."""
    a, b = rng.randint(11, 99), rng.randint(2, 9)
    tens, units = divmod(a, 10)
    carry = units * b // 10
    working = f"{units}*{b}={units * b}, {tens}*{b}={tens * b}, {tens * b}+{carry}={tens * b + carry}"
    return _phrased(rng, _MULTIPLICATION, "*", a, b, f"{working}: {a * b}")


def draw_comparison(rng: random.Random) -> Problem:
    """The larger or smaller of two different numbers up to 99, often with the same tens."""
    a = rng.randint(1, 99)
    b = a
    while b == a:
        b = rng.choice((rng.randint(1, 99), max(1, a // 10 * 10 + rng.randint(0, 9))))
    direction = rng.choice(("larger", "smaller"))
    return Problem(
        key=f"comparison {direction} {min(a, b)} {max(a, b)}",
        prompt=rng.choice(_COMPARISON[direction]).format(a=a, b=b),
        answer=str(max(a, b) if direction == "larger" else min(a, b)),
    )


def _phrased(rng: random.Random, phrasings: tuple[str, ...], sign: str, a: int, b: int, answer: str) -> Problem:
    first, second = sorted((a, b)) if sign == "+" else (a, b)
    return Problem(key=f"{first}{sign}{second}", prompt=rng.choice(phrasings).format(a=a, b=b), answer=answer)


def _digits(a: int, b: int) -> list[tuple[int, int]]:
    """Pairs of digits from the units up, zeros where one number has no digit."""
    width = max(len(str(a)), len(str(b)))
    return list(zip(map(int, reversed(f"{a:0{width}}")), map(int, reversed(f"{b:0{width}}")), strict=True))


def _addition_columns(a: int, b: int) -> list[str]:
    columns, carry = [], 0
    for x, y in _digits(a, b):
        total = x + y + carry
        columns.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return columns


def _subtraction_columns(a: int, b: int) -> list[str]:
    """A column whose upper digit is too small takes ten from the next one, which then loses one."""
    columns, borrow = [], 0
    for x, y in _digits(a, b):
        upper = x if x - borrow >= y else x + 10
        columns.append(f"{upper}{'-1' if borrow else ''}-{y}={upper - borrow - y}")
        borrow = int(upper != x)
    return columns
