"""Several answers on one terminal, rewritten in place while their tokens are revealed, in whatever order they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from common.cli.answer_lines import label, printable

MASK = "_"
EVERY_S = 0.04
LINES_PER_ANSWER = 2

Decode = Callable[[Sequence[int]], str]


class AnswerBoard:
    """A view with two lines for each answer: the question and what is known of the answer, `MASK` where nothing is yet.

    It draws no line longer than `width` characters until the end: a line that wraps could not be rewritten.
    """

    def __init__(
        self, stream: TextIO, questions: Sequence[str], *, decode: Decode, block_length_tokens: int, width: int
    ) -> None:
        """Draws the questions at once."""
        self._stream = stream
        self._questions = questions
        self._decode = decode
        self._block_length_tokens = block_length_tokens
        self._width = width
        self._known: list[dict[int, str]] = [{} for _ in questions]
        self._texts = ["" for _ in questions]
        self._over = [False for _ in questions]
        self._redraw_s = 0.0
        self._is_drawn = False
        self._draw(width)

    def tokens(self, index: int, positions: Sequence[int], token_ids: Sequence[int]) -> None:
        """See `AnswerView.tokens`."""
        for position, token in zip(positions, token_ids, strict=True):
            self._known[index][position] = self._decode([token])
        if time.monotonic() >= self._redraw_s:
            self._redraw_s = time.monotonic() + EVERY_S
            self._draw(self._width)

    def text(self, index: int, text: str) -> None:
        """See `AnswerView.text`."""
        self._texts[index] += text

    def finish(self, index: int) -> None:
        """See `AnswerView.finish`."""
        self._over[index] = True

    def close(self) -> None:
        """Draw everything once more, in full length."""
        self._draw(None)

    def _answer(self, index: int) -> str:
        known = self._known[index]
        if self._over[index] or not known:
            return self._texts[index]
        blocks = max(known) // self._block_length_tokens + 1
        return "".join(known.get(position, MASK) for position in range(blocks * self._block_length_tokens))

    def _draw(self, width: int | None) -> None:
        lines = []
        for index, question in enumerate(self._questions):
            first, rest = label(index), " " * len(label(index))
            lines += [f"{first}{printable(question)}"[:width], f"{rest}{printable(self._answer(index))}"[:width]]
        # Up to the first line and clear from there on: what was drawn before is drawn over.
        back = f"\x1b[{LINES_PER_ANSWER * len(self._questions)}A\r\x1b[J" if self._is_drawn else ""
        self._stream.write(back + "".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._is_drawn = True
