"""Runs a grid of settings over the questions, and scores each setting over all and by task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.corpus.question import Question
from common.evaluation.answer import Answer, Answerer
from common.evaluation.score import Score, score
from common.evaluation.setting import Setting

OnProgress = Callable[[int, str], None]
"""Gets the number of answers so far, over all settings, and the label of the setting that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingResult:
    """One setting's answers (parallel to `questions`) and scores. `elapsed_s`: wall time of its questions together."""

    setting: Setting
    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    overall: Score
    by_task: dict[str, Score]
    elapsed_s: float

    def wrong(self) -> list[tuple[Question, Answer]]:
        """The questions that were not answered exactly, with what was answered."""
        pairs = zip(self.questions, self.answers, strict=True)
        return [(question, answer) for question, answer in pairs if answer.text != question.answer]


def evaluate(
    answerer: Answerer, questions: Sequence[Question], settings: Sequence[Setting], *, on_progress: OnProgress
) -> list[SettingResult]:
    """Ask every question under every setting; each setting's baseline must come before it. Raises `SangamError`."""
    results: dict[Setting, SettingResult] = {}
    done = 0
    for setting in settings:

        def count(label: str = setting.label) -> None:
            nonlocal done
            done += 1
            on_progress(done, label)

        started_s = time.monotonic()
        answers = answerer.answer(questions, setting, on_answer=count)
        elapsed_s = time.monotonic() - started_s
        uncached = answers if setting == setting.baseline else results[setting.baseline].answers
        results[setting] = _result(setting, questions, answers, uncached, elapsed_s=elapsed_s)
    return list(results.values())


def _result(
    setting: Setting,
    questions: Sequence[Question],
    answers: Sequence[Answer],
    uncached: Sequence[Answer],
    *,
    elapsed_s: float,
) -> SettingResult:
    by_task: dict[str, Score] = {}
    for task in dict.fromkeys(question.task for question in questions):
        rows = [row for row in zip(questions, answers, uncached, strict=True) if row[0].task == task]
        by_task[task] = score(*zip(*rows, strict=True))
    return SettingResult(
        setting=setting,
        questions=tuple(questions),
        answers=tuple(answers),
        overall=score(questions, answers, uncached),
        by_task=by_task,
        elapsed_s=elapsed_s,
    )
