"""What a long command says of its progress, on a terminal and elsewhere."""

from __future__ import annotations

import pytest

from common.cli.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress sees; starts at 100 s."""
    now = [100.0]
    monkeypatch.setattr("common.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_short_run_says_nothing(clock, capsys):
    with Progress(3, "answers") as progress:
        clock[0] += 1.9
        progress.show(3)
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with Progress(40, "answers") as progress:
        for second in range(14):
            clock[0] = 100.0 + second
            progress.show(second, "cache dual")
    assert capsys.readouterr().err == "2 of 40 answers, cache dual\n12 of 40 answers, cache dual\n"


def test_a_terminal_gets_one_line_with_a_bar(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(4, "answers") as progress:
        for done in (0, 2, 4):
            clock[0] += 2.5
            progress.show(done)
    lines = capsys.readouterr().err
    assert lines.count("\n") == 1 and lines.endswith("\n")
    assert [frame.rstrip().removesuffix("\x1b[K") for frame in lines.split("\r")[1:]] == [
        f"[{' ' * 24}] 0 of 4 answers",
        f"[{'#' * 12}{' ' * 12}] 2 of 4 answers",
        f"[{'#' * 24}] 4 of 4 answers",
    ]
