"""The tasks, the endless mix to train on, and the questions kept apart from it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from common.corpus.arithmetic import draw_addition, draw_comparison, draw_multiplication, draw_subtraction
from common.corpus.dates import draw_date, draw_weekday
from common.corpus.letters import draw_counting, draw_reversing
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
"""Names of the tasks, in the order of reports."""

TRAINING_WEIGHTS: dict[str, float] = {
    "addition": 1.0,
    "subtraction": 1.2,
    "multiplication": 1.0,
    "comparison": 1.0,
    "sorting": 1.4,
    "counting": 1.4,
    "reversing": 1.4,
    "weekdays": 1.0,
    "dates": 1.0,
    "units": 1.0,
    "word_problems": 1.4,
    "small_talk": 0.5,
}
"""How often each task is drawn for training, relative to the others: what is hard to learn comes more often."""

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


def training_questions(*, seed: int) -> Iterator[Question]:
    """An endless mix by `TRAINING_WEIGHTS`, never with a held-out problem; the same seed gives the same questions."""
    rng = random.Random(f"training {seed}")
    weights = list(TRAINING_WEIGHTS.values())
    while True:
        (task,) = rng.choices(list(TRAINING_WEIGHTS), weights)
        problem = _DRAWS[task](rng)
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
