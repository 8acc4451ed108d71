"""Held-out questions: as many as asked for, all different, the same every time, and never trained on."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from common.corpus.questions import TASKS, TRAINING_WEIGHTS, held_out_questions, training_questions
from common.errors import ConfigError

_TRAINING_SAMPLE = 20_000
_OF_SMALL_TASKS = {"small_talk": 150, "weekdays": 150}
"""Held-out questions that tasks with few problems have at least."""


def test_held_out_questions_are_different_and_enough() -> None:
    questions = held_out_questions(per_task=300, seed=0)
    counts = Counter(question.task for question in questions)
    assert tuple(counts) == TASKS
    assert all(count >= _OF_SMALL_TASKS.get(task, 300) for task, count in counts.items())
    assert len({question.prompt for question in questions}) == len(questions)


def test_training_never_asks_what_is_held_out() -> None:
    held_out = {question.prompt for question in held_out_questions(per_task=600, seed=0)}
    assert len(held_out) > 5500
    for mix in TRAINING_WEIGHTS:
        trained = {q.prompt for q in itertools.islice(training_questions(seed=0, mix=mix), _TRAINING_SAMPLE)}
        assert not held_out & trained


def test_a_held_out_sum_is_held_out_in_every_wording() -> None:
    held_out = held_out_questions(per_task=300, seed=0, tasks=["multiplication"])
    results = {tuple(sorted(map(int, _digits(q.prompt)))) for q in held_out}
    trained = {
        tuple(sorted(map(int, _digits(q.prompt))))
        for q in itertools.islice(training_questions(seed=2), _TRAINING_SAMPLE)
        if q.task == "multiplication"
    }
    assert not results & trained


def _digits(prompt: str) -> list[str]:
    return "".join(character if character.isdigit() else " " for character in prompt).split()


def test_the_same_arguments_give_the_same_questions() -> None:
    assert held_out_questions(per_task=20, seed=1) == held_out_questions(per_task=20, seed=1)
    assert held_out_questions(per_task=20, seed=1) != held_out_questions(per_task=20, seed=2)
    first, again = (list(itertools.islice(training_questions(seed=7), 500)) for _ in range(2))
    assert first == again


def test_a_task_alone_gives_the_questions_it_gives_among_others() -> None:
    among = [q for q in held_out_questions(per_task=10, seed=0) if q.task == "dates"]
    assert held_out_questions(per_task=10, seed=0, tasks=["dates"]) == among


@pytest.mark.parametrize("mix", TRAINING_WEIGHTS)
def test_a_mix_follows_its_weights(mix: str) -> None:
    counts = Counter(q.task for q in itertools.islice(training_questions(seed=0, mix=mix), _TRAINING_SAMPLE))
    total = sum(TRAINING_WEIGHTS[mix].values())
    for task, weight in TRAINING_WEIGHTS[mix].items():
        assert counts[task] / _TRAINING_SAMPLE == pytest.approx(weight / total, rel=0.15)


def test_the_last_mix_is_what_is_examined() -> None:
    assert set(TRAINING_WEIGHTS["last"]) == set(TASKS)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ConfigError, match="'poetry' is not one of addition"):
        held_out_questions(per_task=1, seed=0, tasks=["poetry"])
