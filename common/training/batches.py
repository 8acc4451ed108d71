"""Batches of canvases of one length: prompt, answer, end-of-text up to the canvas' end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.corpus.question import Question
from common.corpus.questions import training_questions
from common.tokenizer import Tokenizer
from common.training.vocabulary import ASSISTANT, USER

_CANVAS_MULTIPLE = 16
_CANVAS_TOKENS = (32, 48, 64, 80, 96, 128, 160)
_EXTRA_TOKENS = (0, 16, 32, 64, 96)
_EXTRA_WEIGHTS = (0.74, 0.12, 0.09, 0.04, 0.01)
"""How much longer than needed a canvas is: a server asks for some length before anybody knows the answer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`token_ids` [batch, canvas] without noise; `prompt_tokens`, `answer_tokens` (with one end-of-text) [batch]."""

    token_ids: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    answer_tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatIds:
    """Ids of the tokens that stand around what is said."""

    user: int
    assistant: int
    eos: int

    @classmethod
    def of(cls, controls: dict[str, int], eos: int) -> ChatIds:
        """From the vocabulary's control tokens."""
        return cls(user=controls[USER], assistant=controls[ASSISTANT], eos=eos)

    def prompt(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """A user's words as the chat template puts them."""
        return [self.user, *tokenizer.encode(text), self.assistant]


class BatchSource:
    """One mix' batches by number. A (seed, number) gives the same batch in whatever order they are asked for."""

    def __init__(
        self, tokenizer: Tokenizer, chat: ChatIds, *, mix: str, seed: int, batch_tokens: int, chunk_questions: int
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._mix = mix
        self._seed = seed
        self._batch_tokens = batch_tokens
        self._chunk_questions = chunk_questions

    def batches(self, first: int) -> Iterator[Batch]:
        """Endless, from batch number `first` on."""
        skip = first
        for chunk in itertools.count():
            numbered = self._chunk(chunk)
            if skip >= len(numbered):
                skip -= len(numbered)
                continue
            for canvas_tokens, questions in numbered[skip:]:
                yield self._batch(questions, canvas_tokens)
            skip = 0

    def _chunk(self, chunk: int) -> list[tuple[int, list[tuple[list[int], list[int]]]]]:
        """One chunk's batches in their order: canvas length, then (prompt, answer) pairs; the last of a length repeats
        earlier questions to be full."""
        rng = random.Random(f"chunk {self._seed} {chunk}")
        questions = itertools.islice(training_questions(seed=rng.getrandbits(48), mix=self._mix), self._chunk_questions)
        by_length: dict[int, list[tuple[list[int], list[int]]]] = {length: [] for length in _CANVAS_TOKENS}
        for question in questions:
            pair = self._pair(question)
            extra = rng.choices(_EXTRA_TOKENS, _EXTRA_WEIGHTS)[0]
            needed = -(-(len(pair[0]) + len(pair[1])) // _CANVAS_MULTIPLE) * _CANVAS_MULTIPLE + extra
            by_length[next((length for length in _CANVAS_TOKENS if length >= needed), _CANVAS_TOKENS[-1])].append(pair)
        batches = []
        for canvas_tokens, pairs in by_length.items():
            size = max(1, self._batch_tokens // canvas_tokens)
            full = pairs + pairs[: -len(pairs) % size]
            batches += [(canvas_tokens, full[i : i + size]) for i in range(0, len(full) - size + 1, size)]
        rng.shuffle(batches)
        return batches

    def _pair(self, question: Question) -> tuple[list[int], list[int]]:
        answer = [*self._tokenizer.encode(question.answer), self._chat.eos]
        return self._chat.prompt(self._tokenizer, question.prompt), answer

    def _batch(self, pairs: list[tuple[list[int], list[int]]], canvas_tokens: int) -> Batch:
        token_ids = np.full((len(pairs), canvas_tokens), self._chat.eos, dtype=np.int64)
        for row, (prompt, answer) in zip(token_ids, pairs, strict=True):
            row[: len(prompt)] = prompt
            row[len(prompt) : len(prompt) + len(answer)] = answer
        return Batch(
            token_ids=token_ids,
            prompt_tokens=np.array([len(prompt) for prompt, _ in pairs], dtype=np.int64),
            answer_tokens=np.array([len(answer) for _, answer in pairs], dtype=np.int64),
        )
