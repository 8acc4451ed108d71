"""The checks of `check_gpu`: on a GPU where `-m gpu` asks for them; on a CPU what `tests/engine` does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu.check_gpu import CHECKS, check_full_logits, check_kv_transfer, main


def name_of(check: Callable[[str], None]) -> str:
    return check.__name__


@pytest.mark.parametrize("check", [check_full_logits, check_kv_transfer], ids=name_of)
def test_on_a_cpu(check: Callable[[str], None]) -> None:
    check("cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_on_a_gpu(check: Callable[[str], None]) -> None:
    check("cuda")


@pytest.mark.parametrize(
    ("failing", "code"), [([], 0), ([ValueError("odd")], 1), ([AssertionError("wrong")], 1)], ids=str
)
def test_every_check_is_run_and_told_of(
    failing: list[Exception], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def fails(device: str) -> None:
        """Fails."""
        asked.append(device)
        if failing:
            raise failing[0]

    def holds(device: str) -> None:
        """Holds."""
        asked.append(device)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("tests.gpu.check_gpu.CHECKS", (fails, holds))
    assert main(["cuda:1"]) == code
    assert asked == ["cuda:1", "cuda:1"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["FAILED" if failing else "ok", "ok"]


def test_without_a_gpu_it_says_that_nothing_was_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([]) == 2
    assert "nothing was checked" in capsys.readouterr().out
