"""Answers on a terminal, rewritten in place, and in a pipe, line by line."""

from __future__ import annotations

import io

from common.cli.answer_board import AnswerBoard
from common.cli.answer_lines import AnswerLines

QUESTIONS = ["What is 4+5?", 'Reverse "ab".']


def decode(token_ids) -> str:
    return "".join(map(chr, token_ids))


class Screen(io.StringIO):
    """A terminal that knows two things: moving the cursor up, and clearing from there on."""

    @property
    def lines(self) -> list[str]:
        shown: list[str] = []
        rest = self.getvalue()
        while rest.startswith("\x1b[") or "\x1b[" in rest:
            text, _, rest = rest.partition("\x1b[")
            shown += text.splitlines()
            count, _, rest = rest.partition("A\r\x1b[J")
            del shown[len(shown) - int(count) :]
        return shown + rest.splitlines()


def board(screen: Screen, *, width: int = 60) -> AnswerBoard:
    return AnswerBoard(screen, QUESTIONS, decode=decode, block_length_tokens=4, width=width)


def test_a_board_shows_tokens_out_of_order_between_masks(monkeypatch):
    monkeypatch.setattr("common.cli.answer_board.EVERY_S", 0.0)
    screen = Screen()
    view = board(screen)
    assert screen.lines == ["    [1] What is 4+5?", " " * 8, '    [2] Reverse "ab".', " " * 8]
    view.tokens(0, [2, 1], [ord("="), ord("b")])
    view.tokens(1, [0], [ord("x")])
    assert screen.lines == ["    [1] What is 4+5?", "        _b=_", '    [2] Reverse "ab".', "        x___"]
    view.tokens(0, [0, 3, 5], [ord("a"), ord("9"), ord("!")])
    assert screen.lines[1] == "        ab=9_!__"


def test_an_answer_that_is_over_is_its_text(monkeypatch):
    monkeypatch.setattr("common.cli.answer_board.EVERY_S", 0.0)
    screen = Screen()
    view = board(screen, width=14)
    view.tokens(0, range(4), [ord(letter) for letter in "nine"])
    view.text(0, "nine is")
    view.text(0, " it")
    view.finish(0)
    view.tokens(1, [0], [7])
    # No line may wrap while it can still be rewritten; a control character drives nothing.
    assert screen.lines == ["    [1] What i", "        nine i", "    [2] Revers", "        ·___"]
    view.close()
    assert screen.lines[:3] == ["    [1] What is 4+5?", "        nine is it", '    [2] Reverse "ab".']


def test_a_board_is_not_drawn_for_every_token():
    screen = Screen()
    view = board(screen)
    for position in range(1000):
        view.tokens(0, [position], [ord("a")])
    assert screen.getvalue().count("\x1b[J") < 1000
    view.close()
    assert screen.lines[1] == "        " + "a" * 1000


def test_in_a_pipe_answers_take_turns_a_few_words_to_the_line():
    pipe = io.StringIO()
    view = AnswerLines(pipe, QUESTIONS)
    view.tokens(0, [5], [9])
    view.text(0, "a" * 10)
    view.text(1, "b\x1b" + "b" * 30)
    view.text(0, "c" * 20)
    view.text(0, "rest")
    view.finish(0)
    view.finish(1)
    view.close()
    assert pipe.getvalue().splitlines() == [
        "    [1] What is 4+5?",
        '    [2] Reverse "ab".',
        "    [2] b·" + "b" * 30,
        "    [1] " + "a" * 10 + "c" * 20,
        "    [1] rest",
    ]
