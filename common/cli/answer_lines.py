"""Several answers in one pipe or log: the questions first, then a few words of some answer to the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TextIO

PIECE_CHARACTERS = 24


class AnswerView(Protocol):
    """Shows answers while they come. `index` says which, from 0."""

    def tokens(self, index: int, positions: Sequence[int], token_ids: Sequence[int]) -> None:
        """Tokens were revealed, in any order and perhaps once more; positions count from the answer's first token."""
        ...

    def text(self, index: int, text: str) -> None:
        """The committed text goes on so."""
        ...

    def finish(self, index: int) -> None:
        """The answer is over."""
        ...

    def close(self) -> None:
        """All answers are over."""
        ...


class AnswerLines:
    """The view for whatever is no terminal."""

    def __init__(self, stream: TextIO, questions: Sequence[str]) -> None:
        """Writes the questions at once."""
        self._stream = stream
        self._held = ["" for _ in questions]
        for index, question in enumerate(questions):
            self._write(index, question)

    def tokens(self, index: int, positions: Sequence[int], token_ids: Sequence[int]) -> None:
        """Nothing: a line that is written stays."""

    def text(self, index: int, text: str) -> None:
        """See `AnswerView.text`."""
        self._held[index] += text
        if len(self._held[index]) >= PIECE_CHARACTERS:
            self.finish(index)

    def finish(self, index: int) -> None:
        """See `AnswerView.finish`."""
        if self._held[index]:
            self._write(index, printable(self._held[index]))
        self._held[index] = ""

    def close(self) -> None:
        """See `AnswerView.close`."""

    def _write(self, index: int, text: str) -> None:
        self._stream.write(f"{label(index)}{text}\n")
        self._stream.flush()


def label(index: int) -> str:
    """What stands before a line about answer `index`."""
    return f"{f'[{index + 1}]':>7} "


def printable(text: str) -> str:
    """`text` on one line, and without what drives a terminal."""
    return "".join(character if character.isprintable() else "·" for character in text)
