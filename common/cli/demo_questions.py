"""What the demo asks: questions that the default model never saw in training, one of each kind that it knows well."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from common.core.params import CacheMode
from common.corpus.question import Question
from common.corpus.questions import held_out_questions
from common.generation_input import GenerationInput

MAX_TOKENS = 64
BLOCK_LENGTH_TOKENS = 32
SEED = 1
ASKED = {
    **{"word_problems": 8, "addition": 4, "multiplication": 11, "dates": 14, "weekdays": 5},
    **{"units": 7, "sorting": 3, "reversing": 2, "counting": 18, "small_talk": 0},
}
"""Which held-out question of each task: those that the model answers rightly in every cache mode are listed by
`python -m tests.cli.demo_candidates`; how often it does at all is what `sangam eval` measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQuestion:
    """A question with its right answer, and the request that puts it to the model."""

    question: Question
    wanted: GenerationInput


def demo_questions() -> tuple[DemoQuestion, ...]:
    """The questions, each in a cache mode: the three take turns."""
    return tuple(
        DemoQuestion(question=question, wanted=request_for(question, cache_mode))
        for question, cache_mode in zip(_questions(), itertools.cycle(CacheMode), strict=False)
    )


def request_for(question: Question, cache_mode: CacheMode = CacheMode.DUAL) -> GenerationInput:
    """How the demo puts a question to the model."""
    return GenerationInput(
        text=question.prompt,
        token_ids=None,
        max_tokens=MAX_TOKENS,
        block_length_tokens=BLOCK_LENGTH_TOKENS,
        cache_mode=cache_mode,
    )


def _questions() -> list[Question]:
    return [held_out_questions(per_task=index + 1, seed=SEED, tasks=(task,))[index] for task, index in ASKED.items()]
