"""What came back for one question, wherever it ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.corpus.question import Question
from common.evaluation.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`token_ids` end with the end-of-text token, if there was one; `text` is without it.

    `revealed_tokens` counts all positions that the forwards revealed, those behind the end of text included; None
    where that is not known: a cluster tells of the answer only.
    """

    token_ids: tuple[int, ...]
    text: str
    prefill_forwards: int
    decode_forwards: int
    revealed_tokens: int | None


class Answerer(Protocol):
    """Something that answers questions: the engine in this process, or a cluster."""

    def answer(self, questions: Sequence[Question], setting: Setting, *, on_answer: Callable[[], None]) -> list[Answer]:
        """Answers in the order of the questions; `on_answer` is called as each comes. Raises `SangamError`."""
        ...
