"""Requests made of held-out questions, no two asked in the same way after each other, and their solo answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from common.cli.local_check import LocalCheck
from common.core.params import (
    CacheMode,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
)
from common.corpus.questions import TASKS, held_out_questions
from common.evaluation.setting import Setting
from common.generation_input import GenerationInput
from common.text_codec import load_text_codec

MAX_TOKENS = 64
_BLOCK_LENGTHS_TOKENS = (32, 8, 16, 32, 5)
_STRATEGIES: tuple[RevealStrategy, ...] = (
    *(ConfidenceThreshold(0.9), ConfidenceQuota(2), ConfidenceThreshold(0.6), ConfidenceDynamic(1.0)),
    *(ConfidenceQuota(4), RandomReveal(), ConfidenceThreshold(0.9)),
)
_TEMPERATURES = (0.0, 0.0, 0.0, 0.8)


class Answered(Protocol):
    """What a cluster answered, however its client got it."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloAnswer:
    """What one request gets when nothing else runs."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str

    def difference(self, answer: Answered) -> str:
        """What the cluster's answer has otherwise; empty when nothing."""
        pairs = {
            "token_ids": (tuple(answer.token_ids), self.token_ids),
            "text": (answer.text, self.text),
            "finish_reason": (answer.finish_reason, self.finish_reason),
        }
        differing = (f"{name} {got!r}, solo {expected!r}" for name, (got, expected) in pairs.items() if got != expected)
        return next(differing, "")


def invariance_requests(count: int, *, seed: int = 0) -> list[GenerationInput]:
    """The first `count` of the held-out questions, task by task in turn, each with the next of all combinations.

    The numbers of block lengths, strategies and temperatures share no factor, nor does any with the three cache modes,
    so every combination comes before one repeats. The same arguments give the same requests.
    """
    by_task = [held_out_questions(per_task=-(-count // len(TASKS)) + 8, seed=seed, tasks=[task]) for task in TASKS]
    questions = [question for row in itertools.zip_longest(*by_task) for question in row if question is not None]
    assert len(questions) >= count, f"only {len(questions)} held-out questions for {count} requests"
    ways = zip(
        itertools.cycle(CacheMode),
        itertools.cycle(_BLOCK_LENGTHS_TOKENS),
        itertools.cycle(_STRATEGIES),
        itertools.cycle(_TEMPERATURES),
        strict=False,
    )
    requests = []
    for number, (question, way) in enumerate(zip(questions[:count], ways, strict=False)):
        mode, length, strategy, temperature = way
        setting = Setting(cache_mode=mode, strategy=strategy, block_length_tokens=length)
        requests.append(
            replace(setting.ask(question.prompt, max_tokens=MAX_TOKENS), temperature=temperature, seed=number)
        )
    return requests


def solo_answers(
    model_dir: Path, requests: Sequence[GenerationInput], *, device: str = "cpu", on_answer: Callable[[int], None]
) -> list[SoloAnswer]:
    """One request after the other through the engine in this process; `on_answer` gets how many are done."""
    check = LocalCheck.load(model_dir, requests, device=device, dtype="auto")
    codec = load_text_codec(model_dir)
    answers = []
    for wanted in requests:
        result = check.run(wanted)
        answers.append(
            SoloAnswer(
                token_ids=result.token_ids,
                text=codec.decode(result.token_ids),
                finish_reason=result.finish_reason.value,
            )
        )
        on_answer(len(answers))
    return answers
