"""One question of the corpus, and the problem that it puts into words."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`prompt` holds the user's words without any chat template; `answer` is the only one that counts as right."""

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A drawn problem. `key` names it whatever its phrasing: problems are held out by key, with all their phrasings."""

    key: str
    prompt: str
    answer: str


Draw = Callable[[random.Random], Problem]
"""Draws one problem of a task, in one of its phrasings."""
