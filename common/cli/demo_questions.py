"""What the demo asks: questions that the default model never saw in training, each generated in a way of its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from common.core.params import CacheMode
from common.corpus.question import Question
from common.corpus.questions import held_out_questions
from common.generation_input import GenerationInput

MAX_TOKENS = 64
BLOCK_LENGTH_TOKENS = 32
_SEED = 1
_TASKS = (
    *("word_problems", "addition", "multiplication", "dates", "weekdays"),
    *("units", "sorting", "reversing", "counting", "small_talk"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQuestion:
    """A question with its right answer, and the request that puts it to the model."""

    question: Question
    wanted: GenerationInput


def demo_questions() -> tuple[DemoQuestion, ...]:
    """One question of each kind; the three cache modes take turns."""
    questions = held_out_questions(per_task=1, seed=_SEED, tasks=_TASKS)
    return tuple(
        DemoQuestion(
            question=question,
            wanted=GenerationInput(
                text=question.prompt,
                token_ids=None,
                max_tokens=MAX_TOKENS,
                block_length_tokens=BLOCK_LENGTH_TOKENS,
                cache_mode=cache_mode,
            ),
        )
        for question, cache_mode in zip(questions, itertools.cycle(CacheMode), strict=False)
    )
