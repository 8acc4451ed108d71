"""What the demo makes of answers: right, wrong, different from the engine's, or none at all."""

from __future__ import annotations

from typing import Any

import pytest

from common.cli.demo_questions import DemoQuestion, demo_questions
from common.cli.demo_report import Asked, closing_lines, render_report
from common.cli.generation_output import SAME, BlockReport, GenerationOutput
from common.core.params import CacheMode
from common.corpus.question import Question
from common.generation_input import GenerationInput

QUESTION = DemoQuestion(
    question=Question(task="addition", prompt="What is 4+5?", answer="9"),
    wanted=GenerationInput(text="What is 4+5?", token_ids=None, max_tokens=64),
)


def block(prefill_worker_id: str, *, overflow: bool) -> BlockReport:
    costs: dict[str, Any] = {"prefill_forwards": 1, "decode_forwards": 2, "attempts": 1, "transfer_bytes": 2048}
    times: dict[str, Any] = {"queue_s": 0.0, "prefill_s": 0.0, "transfer_s": 0.0, "decode_s": 0.0}
    workers: dict[str, Any] = {"prefill_worker_id": prefill_worker_id, "decode_worker_id": "d1", "overflow": overflow}
    return BlockReport(block=0, **workers, **costs, **times)


def output(text: str) -> GenerationOutput:
    return GenerationOutput(
        request_id="r",
        token_ids=tuple(range(12)),
        text=text,
        finish_reason="stop",
        seed=1,
        cache_mode="dual",
        prompt_tokens=4,
        prefill_forwards=2,
        decode_forwards=4,
        attempts=2,
        carried_tokens=0,
        time_to_first_commit_s=0.1,
        total_s=0.2,
        blocks=(block("p0", overflow=False), block("d0", overflow=True)),
    )


def asked(text: str | None, *, local_verdict: str = SAME, failure: str = "") -> Asked:
    answer = None if text is None else output(text)
    return Asked(number=3, question=QUESTION, output=answer, local_verdict=local_verdict, failure=failure)


@pytest.mark.parametrize(
    ("one", "knows_answers", "words"),
    [
        (asked("9"), True, []),
        (asked("8"), False, []),
        (asked("8"), True, ["question 3: '8' is not the right answer '9'"]),
        (asked("9."), True, ["question 3: '9.' is not the right answer '9'"]),
        (asked("9", local_verdict="tokens 1, not 2"), True, ["question 3: tokens 1, not 2"]),
        (asked(None, failure="no gateway"), False, ["question 3: no gateway"]),
    ],
    ids=["right", "wrong, unasked", "wrong", "nearly right", "not the engine's", "none"],
)
def test_what_counts_as_a_problem(one, knows_answers, words):
    assert one.problems(knows_answers=knows_answers) == words


def test_costs_and_places_are_shown():
    report = render_report([asked("9"), asked("8", local_verdict="no"), asked(None)], knows_answers=True)
    rows = [" ".join(line.split()) for line in report.splitlines()[1:]]
    assert rows == [
        "3 addition dual, threshold 0.9 12 2 4 2.0 p0, d0* 2 yes yes",
        "3 addition dual, threshold 0.9 12 2 4 2.0 p0, d0* 2 no no",
        "3 addition dual, threshold 0.9 - - - - - - no no",
    ]
    lines = closing_lines([asked("9"), asked("8")], knows_answers=True, overload_threshold=256)
    assert lines[0] == "1 of 2 answers are right"
    assert lines[1] == "24 tokens took 4 prefills and 8 decode steps: 2.0 tokens per forward"
    assert lines[2].startswith("8 KiB of K/V")
    assert lines[3].startswith("* 2 of 4 prefills overflowed") and "--overload-threshold 256" in lines[3]


def test_each_kind_is_asked_once_and_every_cache_mode_is_used():
    questions = demo_questions()
    tasks = [question.question.task for question in questions]
    assert len(set(tasks)) == len(tasks) >= 8
    assert {question.wanted.cache_mode for question in questions} == set(CacheMode)
    assert all(question.wanted.text == question.question.prompt for question in questions)
