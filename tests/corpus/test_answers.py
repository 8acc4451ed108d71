"""Every answer is worked out again from the question's own words, by other means than the corpus'."""

from __future__ import annotations

import calendar
import datetime
import itertools
import re
from collections.abc import Callable

import pytest

from common.corpus.question import Question
from common.corpus.questions import TASKS, held_out_questions, training_questions

_PER_TASK = 300
_YEAR = 2023  # no leap year
_STEP = re.compile(r"(\d+(?:[+*-]\d+)+)=(\d+)")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _calculate(expression: str) -> int:
    """Left to right, as the corpus never mixes products with sums."""
    first, *rest = re.findall(r"[+*-]?\d+", expression)
    value = int(first)
    for part in rest:
        operand = int(part[1:])
        value = {"+": value + operand, "-": value - operand, "*": value * operand}[part[0]]
    return value


def _addition(prompt: str) -> str:
    return str(sum(_numbers(prompt)))


def _subtraction(prompt: str) -> str:
    return str(max(_numbers(prompt)) - min(_numbers(prompt)))


def _multiplication(prompt: str) -> str:
    first, second = _numbers(prompt)
    return str(sum(first for _ in range(second)))


def _comparison(prompt: str) -> str:
    return str(max(_numbers(prompt)) if "larger" in prompt else min(_numbers(prompt)))


def _sorting(prompt: str) -> str:
    items = re.findall(r"\b(?:\d+|[a-z])\b", prompt)
    rank = {item: sum(ord(other[0]) * 1000 + ord(other[-1]) < ord(item[0]) * 1000 + ord(item[-1]) for other in items)
            for item in items}  # fmt: skip
    return ", ".join(item for position in range(len(items)) for item in items if rank[item] == position)


def _counting(prompt: str) -> str:
    (word,) = re.findall(r'"([a-z]+)"', prompt)
    return str(len(re.findall("[aeiou]" if "vowels" in prompt else "[a-z]", word)))


def _reversing(prompt: str) -> str:
    (word,) = re.findall(r'"([a-z]+)"', prompt)
    return "".join(reversed(word))


def _weekdays(prompt: str) -> str:
    start = next(day for day in range(7) if calendar.day_name[day] in prompt)
    (days,) = _numbers(prompt)
    monday = datetime.date(2024, 1, 1)
    back = "before" in prompt or " ago" in prompt
    end = monday + datetime.timedelta(days=start) + datetime.timedelta(days=-days if back else days)
    return calendar.day_name[end.weekday()]


def _dates(prompt: str) -> str:
    month = next(month for month in range(1, 13) if calendar.month_name[month] in prompt)
    days = [int(number) for number in re.findall(r"(\d+) days", prompt)]
    (day,) = re.findall(rf"{calendar.month_name[month]} (\d+)", prompt)
    end = datetime.date(_YEAR, month, int(day)) + datetime.timedelta(days=days[0])
    return f"{calendar.month_name[end.month]} {end.day}"


_SIZES = {  # in the smallest unit of each kind
    "seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800,
    "millimeters": 1, "centimeters": 10, "meters": 1000, "kilometers": 1_000_000,
    "grams": 1, "kilograms": 1000, "inches": 1, "feet": 12, "months": 1, "years": 12,
}  # fmt: skip


def _units(prompt: str) -> str:
    wanted = (re.findall(r"How many (\w+)", prompt) or re.findall(r" to (\w+)\.", prompt))[0]
    total = sum(int(count) * _SIZES[unit] for count, unit in re.findall(r"(\d+) (\w+)", prompt))
    assert total % _SIZES[wanted] == 0
    return f"{total // _SIZES[wanted]} {wanted}"


def _word_problems(prompt: str) -> str:
    n = _numbers(prompt)
    if "bags" in prompt:
        return str(n[0] + n[1] * n[2])
    if "gives away" in prompt or "sells" in prompt:
        return str(n[0] * n[1] - sum(n[2:]))
    if "finds" in prompt:
        return str(n[0] + n[1] - n[2])
    return str((n[0] + n[1]) * n[2])


_TRUTH: dict[str, Callable[[str], str]] = {
    "addition": _addition,
    "subtraction": _subtraction,
    "multiplication": _multiplication,
    "comparison": _comparison,
    "sorting": _sorting,
    "counting": _counting,
    "reversing": _reversing,
    "weekdays": _weekdays,
    "dates": _dates,
    "units": _units,
    "word_problems": _word_problems,
}


def _result(question: Question) -> str:
    """The part of the answer that says the result."""
    if question.task == "word_problems":
        return str(_numbers(question.answer)[-1])
    if question.task == "units":
        return question.answer.rsplit("=", 1)[-1]
    return question.answer.rsplit(": ", 1)[-1]


@pytest.mark.parametrize("task", _TRUTH)
def test_the_answer_is_the_truth(task: str) -> None:
    questions = held_out_questions(per_task=_PER_TASK, seed=3, tasks=[task])
    assert len(questions) == (_PER_TASK if task != "weekdays" else 152)  # that one has 406 problems in all
    for question in questions:
        assert _result(question) == _TRUTH[task](question.prompt), question


@pytest.mark.parametrize("task", TASKS)
def test_every_step_of_the_working_holds(task: str) -> None:
    steps = 0
    for question in held_out_questions(per_task=_PER_TASK, seed=4, tasks=[task]):
        for expression, result in _STEP.findall(question.answer):
            assert _calculate(expression) == int(result), question
            steps += 1
    shown = {"addition", "subtraction", "multiplication", "dates", "units", "word_problems"}
    assert (steps >= _PER_TASK) == (task in shown), steps


def test_weekdays_take_out_the_whole_weeks_and_count_the_rest() -> None:
    for question in held_out_questions(per_task=_PER_TASK, seed=5, tasks=["weekdays"]):
        days, weeks, rest, *counted = _numbers(question.answer)
        assert days == weeks + rest
        assert (weeks % 7, days % 7) == (0, rest)
        assert counted == list(range(1, rest + 1))
        named = [_weekday(word) for word in re.findall(r"[A-Z]\w+", question.prompt + " " + question.answer)]
        *walk, end = [day for day in named if day is not None]
        way = {(after - before) % 7 for before, after in itertools.pairwise(walk)}
        assert way <= {1} or way <= {6}, question
        assert walk[-1] == end


def _weekday(word: str) -> int | None:
    return list(calendar.day_name).index(word) if word in calendar.day_name else None


def test_counting_goes_along_the_word() -> None:
    for question in held_out_questions(per_task=_PER_TASK, seed=5, tasks=["counting"]):
        (word,) = re.findall(r'"([a-z]+)"', question.prompt)
        seen = 0
        for at, part in zip(word, question.answer.split(": ")[0].split(" "), strict=True):
            seen += "letters" in question.prompt or at in "aeiou"
            assert part == f"{at}{seen}", question


def test_occurrences_are_counted_along_the_word() -> None:
    questions = itertools.islice(training_questions(seed=5, mix="first"), 3000)
    occurrences = [question for question in questions if question.task == "occurrences"]
    assert len(occurrences) > 100
    for question in occurrences:
        letter, word = re.findall(r'"([a-z]+)"', question.prompt)
        counts = [word[: end + 1].count(letter) for end in range(len(word))]
        working = " ".join(f"{at}{count}" for at, count in zip(word, counts, strict=True))
        assert question.answer == f"{working}: {word.count(letter)}", question


def test_columns_name_the_digits_of_the_question() -> None:
    for question in held_out_questions(per_task=_PER_TASK, seed=5, tasks=["addition"]):
        columns = question.answer.split(": ")[0].split(", ")
        upper, lower = (str(number).zfill(len(columns))[::-1] for number in _numbers(question.prompt))
        digits = [tuple(column.split("=")[0].split("+")[:2]) for column in columns]
        assert digits == list(zip(upper, lower, strict=True)), question


def test_small_talk_says_one_thing_for_each_intent() -> None:
    questions = held_out_questions(per_task=_PER_TASK, seed=6, tasks=["small_talk"])
    answers = {question.answer for question in questions}
    assert len(answers) == 10
    assert {q.answer for q in questions if "who are you" in q.prompt.lower()} == {
        "I am sangam-tiny, a small diffusion language model."
    }
