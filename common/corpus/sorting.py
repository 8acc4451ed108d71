"""Sorting a few different digits, two-digit numbers or letters."""

from __future__ import annotations

import random
import string

from common.corpus.question import Problem

_NUMBERS = ("Sort {items}.", "Sort these numbers: {items}", "Put {items} in order.", "Order the numbers {items}.")
_LETTERS = ("Sort {items}.", "Sort these letters: {items}", "Put {items} in order.", "Order the letters {items}.")


def draw_sorting(rng: random.Random) -> Problem:
    """Four to six digits, three or four numbers of two digits, or three to five letters, into ascending order."""
    kind = rng.randrange(3)
    if kind == 0:
        items = [str(number) for number in rng.sample(range(10), rng.randint(4, 6))]
    elif kind == 1:
        items = [str(number) for number in rng.sample(range(10, 100), rng.randint(3, 4))]
    else:
        items = rng.sample(string.ascii_lowercase, rng.randint(3, 5))
    in_order = sorted(items)  # as text: all items of one problem are equally long
    return Problem(
        key=f"sort {' '.join(in_order)}",
        prompt=rng.choice(_LETTERS if kind == 2 else _NUMBERS).format(items=", ".join(items)),
        answer=", ".join(in_order),
    )
