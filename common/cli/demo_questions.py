"""What the demo asks: questions that the default model never saw in training, one of each kind that it knows well."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from common.core.params import CacheMode, ConfidenceQuota, ConfidenceThreshold, RevealStrategy
from common.corpus.question import Question
from common.corpus.questions import held_out_questions
from common.generation_input import GenerationInput

MAX_TOKENS = 64
BLOCK_LENGTH_TOKENS = 32
SEED = 1
ASKED = {
    **{"word_problems": 11, "addition": 1, "multiplication": 11, "dates": 9, "weekdays": 3},
    **{"units": 2, "sorting": 0, "reversing": 4, "counting": 7, "small_talk": 0},
}
"""Which held-out question of each task: those that the model answers rightly in every way are listed by
`python -m tests.cli.demo_candidates`; how often it does at all is what `sangam eval` measures."""
WAYS: tuple[tuple[CacheMode, RevealStrategy], ...] = (
    (CacheMode.DUAL, ConfidenceQuota(4)),
    (CacheMode.PREFIX, ConfidenceQuota(2)),
    (CacheMode.NONE, ConfidenceThreshold(0.9)),
)
"""How questions are put, in turn. With a threshold this model often writes a whole answer in its prefill; a few tokens
in a step show decode workers at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQuestion:
    """A question with its right answer, and the request that puts it to the model."""

    question: Question
    wanted: GenerationInput


def demo_questions() -> tuple[DemoQuestion, ...]:
    """The questions, each in one of `WAYS`: they take turns."""
    return tuple(
        DemoQuestion(question=question, wanted=request_for(question, *way))
        for question, way in zip(_questions(), itertools.cycle(WAYS), strict=False)
    )


def request_for(question: Question, cache_mode: CacheMode, strategy: RevealStrategy) -> GenerationInput:
    """How the demo puts a question to the model."""
    return GenerationInput(
        text=question.prompt,
        token_ids=None,
        max_tokens=MAX_TOKENS,
        block_length_tokens=BLOCK_LENGTH_TOKENS,
        cache_mode=cache_mode,
        strategy=strategy,
    )


def _questions() -> list[Question]:
    return [held_out_questions(per_task=index + 1, seed=SEED, tasks=(task,))[index] for task, index in ASKED.items()]
