"""Counts over the answers to many questions: how many are right, what they cost, how close they are to uncached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.corpus.question import Question
from common.evaluation.answer import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Sums over questions; the rates derive from them. Shares are 0 to 1.

    An answer is right when its text up to the first end of text is the expected one, character for character.
    `answer_tokens` count the answers up to and including that end-of-text token. `compared_tokens` are the positions
    that either answer of a pair (this one, the uncached one) has, `same_tokens` those where both have the same token.
    """

    questions: int
    right: int
    answer_tokens: int
    revealed_tokens: int | None
    prefill_forwards: int
    decode_forwards: int
    same_answers: int
    same_tokens: int
    compared_tokens: int

    @property
    def exact_match(self) -> float:
        """Share of questions answered exactly."""
        return self.right / self.questions

    @property
    def answer_tokens_per_forward(self) -> float:
        """Tokens of the answers for each forward, prefills included."""
        return self.answer_tokens / self.forwards

    @property
    def revealed_tokens_per_forward(self) -> float | None:
        """The same with everything that was revealed, padding behind the end of text too."""
        return None if self.revealed_tokens is None else self.revealed_tokens / self.forwards

    @property
    def forwards(self) -> int:
        """Prefill and decode forwards together."""
        return self.prefill_forwards + self.decode_forwards

    @property
    def prefills_per_answer(self) -> float:
        """Forwards over the whole canvas, one for each block."""
        return self.prefill_forwards / self.questions

    @property
    def decodes_per_answer(self) -> float:
        """Decode forwards."""
        return self.decode_forwards / self.questions

    @property
    def answer_agreement(self) -> float:
        """Share of answers that equal the uncached answer in every token."""
        return self.same_answers / self.questions

    @property
    def token_agreement(self) -> float:
        """Share of positions that hold the uncached answer's token."""
        return self.same_tokens / self.compared_tokens


def score(questions: Sequence[Question], answers: Sequence[Answer], uncached: Sequence[Answer]) -> Score:
    """Count over parallel sequences, which must not be empty; `uncached` are the answers of cache mode `none`."""
    pairs = list(zip(answers, uncached, strict=True))
    return Score(
        questions=len(questions),
        right=sum(answer.text == question.answer for question, answer in zip(questions, answers, strict=True)),
        answer_tokens=sum(len(answer.token_ids) for answer in answers),
        revealed_tokens=_sum_of_known(answer.revealed_tokens for answer in answers),
        prefill_forwards=sum(answer.prefill_forwards for answer in answers),
        decode_forwards=sum(answer.decode_forwards for answer in answers),
        same_answers=sum(answer.token_ids == other.token_ids for answer, other in pairs),
        same_tokens=sum(
            token == other_token
            for answer, other in pairs
            for token, other_token in zip(answer.token_ids, other.token_ids, strict=False)
        ),
        compared_tokens=sum(max(len(answer.token_ids), len(other.token_ids)) for answer, other in pairs),
    )


def _sum_of_known(counts: Iterable[int | None]) -> int | None:
    """Their sum; None when any is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
