"""The tasks, the endless mix to train on, and the questions kept apart from it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from common.corpus.arithmetic import draw_addition, draw_comparison, draw_multiplication, draw_subtraction
from common.corpus.dates import draw_date, draw_weekday
from common.corpus.letters import draw_counting, draw_occurrences, draw_reversing
from common.corpus.question import Draw, Problem, Question
from common.corpus.small_talk import draw_small_talk
from common.corpus.sorting import draw_sorting
from common.corpus.units import draw_units
from common.corpus.word_problems import draw_word_problem
from common.errors import ConfigError

_DRAWS: dict[str, Draw] = {
    "addition": draw_addition,
    "subtraction": draw_subtraction,
    "multiplication": draw_multiplication,
    "comparison": draw_comparison,
    "sorting": draw_sorting,
    "counting": draw_counting,
    "reversing": draw_reversing,
    "weekdays": draw_weekday,
    "dates": draw_date,
    "units": draw_units,
    "word_problems": draw_word_problem,
    "small_talk": draw_small_talk,
}
TASKS: tuple[str, ...] = tuple(_DRAWS)
"""Names of the tasks that are examined, in the order of reports."""

_NOT_EXAMINED: dict[str, Draw] = {"occurrences": draw_occurrences}
"""Whether a letter is the one asked for was not learnt: part of the first mix, which decided the vocabulary."""

_FIRST_WEIGHTS: dict[str, float] = {
    "addition": 1.0,
    "subtraction": 1.0,
    "multiplication": 1.2,
    "comparison": 1.2,
    "sorting": 1.2,
    "occurrences": 1.0,
    "reversing": 1.0,
    "weekdays": 1.0,
    "dates": 1.0,
    "units": 1.0,
    "word_problems": 1.0,
    "small_talk": 0.5,
}
_LAST_WEIGHTS: dict[str, float] = dict.fromkeys(TASKS, 1.0) | {
    "counting": 3.0,
    "word_problems": 1.5,
    "units": 1.2,
    "small_talk": 0.5,
}
TRAINING_WEIGHTS: dict[str, dict[str, float]] = {"first": _FIRST_WEIGHTS, "last": _LAST_WEIGHTS}
"""By the mix' name: how often each task is drawn, relative to the others. What is hard comes more often."""

_HELD_OUT_ONE_IN = 10
_FRUITLESS_DRAWS = 5_000


def is_held_out(key: str) -> bool:
    """Whether the problem of this key is kept out of training: one in ten, by its SHA-256."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % _HELD_OUT_ONE_IN == 0


def held_out_questions(*, per_task: int, seed: int, tasks: Sequence[str] = TASKS) -> list[Question]:
    """`per_task` different questions of each task, task after task, none of whose problems is ever trained on.

    The same arguments give the same list, and a task's questions do not depend on the other tasks asked for. Fewer
    where a task has fewer. Raises `ConfigError` for an unknown task.
    """
    questions = []
    for task in tasks:
        if task not in _DRAWS:
            raise ConfigError(f"task: {task!r} is not one of {', '.join(TASKS)}")
        questions.extend(_held_out(task, per_task, random.Random(f"{task} {seed}")))
    return questions


def training_questions(*, seed: int, mix: str = "last") -> Iterator[Question]:
    """An endless mix by `TRAINING_WEIGHTS[mix]`, never with a held-out problem; one seed always gives the same."""
    rng = random.Random(f"training {seed}")
    draws = _DRAWS | _NOT_EXAMINED
    tasks, weights = list(TRAINING_WEIGHTS[mix]), list(TRAINING_WEIGHTS[mix].values())
    while True:
        (task,) = rng.choices(tasks, weights)
        problem = draws[task](rng)
        if not is_held_out(problem.key):
            yield _question(task, problem)


def _held_out(task: str, count: int, rng: random.Random) -> list[Question]:
    """Draws until there are `count`, or until a long run of draws brought nothing new."""
    found: dict[str, Question] = {}
    fruitless = 0
    while len(found) < count and fruitless < _FRUITLESS_DRAWS:
        problem = _DRAWS[task](rng)
        fruitless += 1
        if is_held_out(problem.key) and problem.prompt not in found:
            found[problem.prompt] = _question(task, problem)
            fruitless = 0
    return list(found.values())


def _question(task: str, problem: Problem) -> Question:
    return Question(task=task, prompt=problem.prompt, answer=problem.answer)
