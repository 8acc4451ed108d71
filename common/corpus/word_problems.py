"""Short word problems of two or three steps, the working shown in sentences."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from common.corpus.question import Problem

_NAMES = ("Mia", "Tom", "Anna", "Ben", "Lea", "Sam", "Nora", "Max", "Ida", "Paul")
_ITEMS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps", "stones", "toys")


@dataclass(frozen=True, slots=True)
class _Story:
    """`numbers` draws what the text names; the answer's other fields follow from those by `working`."""

    prompt: str
    answer: str
    numbers: Callable[[random.Random], dict[str, int]]
    working: Callable[[dict[str, int]], dict[str, int]]


def _bags_numbers(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(2, 9), "b": rng.randint(2, 9), "c": rng.randint(2, 9)}


def _bags_working(x: dict[str, int]) -> dict[str, int]:
    product = x["b"] * x["c"]
    return {"p": product, "t": product + x["a"]}


def _boxes_numbers(rng: random.Random) -> dict[str, int]:
    b, c = rng.randint(2, 9), rng.randint(2, 9)
    return {"b": b, "c": c, "a": rng.randint(2, min(9, b * c - 1))}


def _boxes_working(x: dict[str, int]) -> dict[str, int]:
    product = x["b"] * x["c"]
    return {"p": product, "t": product - x["a"]}


def _exchange_numbers(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(11, 89), "b": rng.randint(2, 9), "c": rng.randint(2, 9)}


def _exchange_working(x: dict[str, int]) -> dict[str, int]:
    found = x["a"] + x["b"]
    return {"p": found, "t": found - x["c"]}


def _crates_numbers(rng: random.Random) -> dict[str, int]:
    b, c = rng.randint(3, 9), rng.randint(3, 9)
    a = rng.randint(2, min(9, b * c - 3))
    return {"b": b, "c": c, "a": a, "d": rng.randint(2, min(9, b * c - a - 1))}


def _crates_working(x: dict[str, int]) -> dict[str, int]:
    product = x["b"] * x["c"]
    return {"p": product, "q": product - x["a"], "t": product - x["a"] - x["d"]}


def _weeks_numbers(rng: random.Random) -> dict[str, int]:
    b = rng.randint(2, 7)
    return {"b": b, "c": rng.randint(2, 9 - b), "d": rng.randint(2, 9)}


def _weeks_working(x: dict[str, int]) -> dict[str, int]:
    daily = x["b"] + x["c"]
    return {"p": daily, "t": daily * x["d"]}


_STORIES = (
    _Story(
        "{name} has {a} {items} and buys {b} bags with {c} {items} each. How many {items} does {name} have now?",
        "The bags hold {b}*{c}={p} {items}. With the first {a} that makes {p}+{a}={t}. {name} has {t} {items}.",
        _bags_numbers,
        _bags_working,
    ),
    _Story(
        "{name} buys {b} boxes with {c} {items} each and gives away {a}. How many {items} are left?",
        "The boxes hold {b}*{c}={p} {items}. {name} gives away {a}, so {p}-{a}={t}. There are {t} {items} left.",
        _boxes_numbers,
        _boxes_working,
    ),
    _Story(
        "{name} has {a} {items}, finds {b} more and then loses {c}. How many {items} does {name} have now?",
        "First {name} has {a}+{b}={p} {items}. Then {c} are lost, so {p}-{c}={t}. {name} has {t} {items}.",
        _exchange_numbers,
        _exchange_working,
    ),
    _Story(
        "{name} has {b} boxes with {c} {items} each, sells {a} and loses {d}. How many {items} are left?",
        "The boxes hold {b}*{c}={p} {items}. {name} sells {a}, so {p}-{a}={q}. Then {d} are lost, so {q}-{d}={t}. "
        "There are {t} {items} left.",
        _crates_numbers,
        _crates_working,
    ),
    _Story(
        "{name} buys {b} {items} and {other} buys {c} {items} every day. How many {items} do they have after {d} days?",
        "Each day that makes {b}+{c}={p} {items}. In {d} days they buy {p}*{d}={t}. They have {t} {items}.",
        _weeks_numbers,
        _weeks_working,
    ),
)


def draw_word_problem(rng: random.Random) -> Problem:
    """One of the stories with drawn names, things and numbers."""
    kind = rng.randrange(len(_STORIES))
    story = _STORIES[kind]
    name, other = rng.sample(_NAMES, 2)
    numbers = story.numbers(rng)
    words: dict[str, str | int] = {"name": name, "other": other, "items": rng.choice(_ITEMS)}
    return Problem(
        key=f"story {kind} {sorted(numbers.items())}",
        prompt=story.prompt.format(**words, **numbers),
        answer=story.answer.format(**words, **numbers, **story.working(numbers)),
    )
