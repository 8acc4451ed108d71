"""A checkpoint with a number that is none is served by no command: one line names file and tensor, code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.cli.main import main
from common.random_checkpoint import build_random_checkpoint
from tests.engine.checkpoints import NOT_FINITE, spoiled_copy


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "tiny"
    build_random_checkpoint(path, n_layers=1, n_heads=1, n_kv_heads=1, hidden_size=8, mlp_size=8, max_canvas_tokens=256)
    return path


@pytest.mark.parametrize("number", NOT_FINITE.values(), ids=NOT_FINITE)
@pytest.mark.parametrize(
    "words",
    [("generate", "--local", "--prompt", "Hi"), ("eval", "--per-task", "1"), ("up", "--grpc-port", "0"), ("demo",)],
)
def test_weights_that_are_not_finite_end_the_command_before_it_begins(
    words: tuple[str, ...], number: float, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    name = spoiled_copy(model_dir, bad, number)
    run_dir = ("--run-dir", str(tmp_path / "run")) if words[0] in ("up", "demo") else ()
    assert main([*words, "--model", str(bad), *run_dir]) == 2
    out, error = capsys.readouterr()
    assert error == f"sangam {words[0]}: error: {bad / 'model.safetensors'}: tensor {name} holds NaN or infinity\n"
    assert out == "" and not (tmp_path / "run").exists()
