"""Scores of answers whose counts are known by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.corpus.question import Question
from common.evaluation.answer import Answer
from common.evaluation.score import score

ADD = Question(task="addition", prompt="2+2?", answer="4")
SORT = Question(task="sorting", prompt="Sort 3 1.", answer="1 3")


def answer(token_ids: tuple[int, ...], text: str, *, decodes: int, revealed: int | None) -> Answer:
    return Answer(token_ids=token_ids, text=text, prefill_forwards=1, decode_forwards=decodes, revealed_tokens=revealed)


RIGHT = answer((7, 0), "4", decodes=0, revealed=8)
WRONG = answer((1, 3, 3, 0), "1 33", decodes=3, revealed=8)
UNCACHED = (RIGHT, answer((1, 2, 0), "1 3", decodes=7, revealed=8))


def test_counts_and_rates():
    counted = score((ADD, SORT), (RIGHT, WRONG), UNCACHED)
    assert (counted.questions, counted.right, counted.exact_match) == (2, 1, 0.5)
    assert (counted.prefill_forwards, counted.decode_forwards, counted.forwards) == (2, 3, 5)
    assert (counted.prefills_per_answer, counted.decodes_per_answer) == (1.0, 1.5)
    assert (counted.answer_tokens, counted.answer_tokens_per_forward) == (6, 1.2)
    assert (counted.revealed_tokens, counted.revealed_tokens_per_forward) == (16, 3.2)


def test_agreement_counts_a_position_that_only_one_answer_has_as_different():
    """Both tokens of the first answer agree; of the second, the first of four positions does."""
    counted = score((ADD, SORT), (RIGHT, WRONG), UNCACHED)
    assert (counted.same_answers, counted.answer_agreement) == (1, 0.5)
    assert (counted.same_tokens, counted.compared_tokens, counted.token_agreement) == (3, 6, 0.5)
    itself = score((ADD, SORT), UNCACHED, UNCACHED)
    assert (itself.answer_agreement, itself.token_agreement) == (1.0, 1.0)


@pytest.mark.parametrize("text", ["4 ", " 4", "4.", "", "44"])
def test_nothing_but_the_exact_text_is_right(text):
    assert score((ADD,), (replace(RIGHT, text=text),), (RIGHT,)).right == 0


def test_one_unknown_count_makes_the_sum_unknown():
    counted = score((ADD, SORT), (RIGHT, replace(WRONG, revealed_tokens=None)), UNCACHED)
    assert counted.revealed_tokens is None and counted.revealed_tokens_per_forward is None
