"""Training by its public doors: the engine computes what the trainer computes, and a run is decided by its recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.checkpoint import WEIGHTS_FILE
from common.engine.engine import Engine
from common.errors import ConfigError
from common.model_config import load_model_config
from common.training.__main__ import main
from common.training.checkpoint_folder import write_tokenizer_and_config, write_weights
from common.training.network import Network
from common.training.recipe import NetworkShape, Recipe, first_steps_of
from common.training.trainer import Intervals, Progress, Trainer
from common.training.vocabulary import corpus_pieces, vocabulary_rows

_INTERVALS = Intervals(steps=1000, questions_per_task=1)


@pytest.fixture(scope="module")
def pieces() -> list[str]:
    return corpus_pieces()


def _shape(pieces: list[str], *, shifted: bool = False) -> NetworkShape:
    return NetworkShape(
        vocab_rows=vocabulary_rows(pieces), hidden_size=32, mlp_size=48, n_layers=2, n_heads=2, shifted=shifted
    )


def _recipe(pieces: list[str], *, seed: int = 0, half_precision: bool = False) -> Recipe:
    return Recipe(
        shape=_shape(pieces),
        steps=20,
        seed=seed,
        batch_tokens=256,
        chunk_questions=32,
        warmup_steps=4,
        half_precision=half_precision,
    )


def _train(recipe: Recipe, pieces: list[str], folder: Path, *, until: int | None = None, resume: bool = False) -> bytes:
    trainer = Trainer(recipe, pieces=pieces, model_dir=folder, intervals=_INTERVALS)
    if resume:
        assert trainer.resume() == 10
    trainer.run(lambda progress: None, until_step=until)
    return (folder / WEIGHTS_FILE).read_bytes()


@pytest.mark.parametrize("shifted", [False, True], ids=["llada", "dream"])
def test_the_engine_computes_what_the_trainer_computes(pieces: list[str], tmp_path: Path, shifted: bool) -> None:
    network = Network(_shape(pieces, shifted=shifted), seed=3)
    with torch.no_grad():
        for parameter in network.parameters():  # norms and biases too must land where they belong
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    write_tokenizer_and_config(tmp_path, network.shape, pieces)
    write_weights(tmp_path, network, dtype=torch.float32)
    canvas = torch.randint(0, network.shape.vocab_rows, (53,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        trained = network.head(network(canvas[None]))[0]
    engine = Engine.load(tmp_path, device="cpu", dtype="float32", num_pages=8)
    assert (engine.canvas_logits(canvas.tolist()) - trained).abs().max() <= 1e-4
    assert load_model_config(tmp_path).family == ("dream" if shifted else "llada")


@pytest.mark.parametrize("half_precision", [False, True], ids=["float32", "bfloat16"])
def test_a_resumed_run_makes_the_same_weights(pieces: list[str], tmp_path: Path, half_precision: bool) -> None:
    recipe = _recipe(pieces, half_precision=half_precision)
    whole = _train(recipe, pieces, tmp_path / "whole")
    half_way = _train(recipe, pieces, tmp_path / "parts", until=10)
    assert half_way != whole
    assert _train(recipe, pieces, tmp_path / "parts", resume=True) == whole


def test_the_seed_decides_the_weights(pieces: list[str], tmp_path: Path) -> None:
    first = _train(_recipe(pieces), pieces, tmp_path / "a")
    assert _train(_recipe(pieces), pieces, tmp_path / "b") == first
    assert _train(_recipe(pieces, seed=1), pieces, tmp_path / "c") != first


def test_training_brings_the_loss_down(pieces: list[str], tmp_path: Path) -> None:
    seen: list[Progress] = []
    recipe = Recipe(shape=_shape(pieces), steps=60, seed=0, batch_tokens=1024, chunk_questions=512, warmup_steps=4)
    Trainer(recipe, pieces=pieces, model_dir=tmp_path, intervals=_INTERVALS).run(seen.append)
    assert [progress.step for progress in seen] == list(range(1, 61))
    first, last = (sum(progress.loss for progress in part) for part in (seen[:10], seen[-10:]))
    assert last < 0.6 * first


def test_a_state_of_another_recipe_is_refused(pieces: list[str], tmp_path: Path) -> None:
    _train(_recipe(pieces), pieces, tmp_path)
    other = Trainer(_recipe(pieces, seed=1), pieces=pieces, model_dir=tmp_path, intervals=_INTERVALS)
    with pytest.raises(ConfigError, match=r"training-state\.json: belongs to a run with other seed"):
        other.resume()


def test_nothing_to_resume_is_said(pieces: list[str], tmp_path: Path) -> None:
    trainer = Trainer(_recipe(pieces), pieces=pieces, model_dir=tmp_path, intervals=_INTERVALS)
    with pytest.raises(ConfigError, match="there is no run to resume"):
        trainer.resume()


def test_the_last_steps_see_the_other_mix_and_a_resumed_run_too(pieces: list[str], tmp_path: Path) -> None:
    recipe = replace(_recipe(pieces), first_steps=8)
    whole = _train(recipe, pieces, tmp_path / "whole")
    assert whole != _train(_recipe(pieces), pieces, tmp_path / "one-mix")
    _train(recipe, pieces, tmp_path / "parts", until=10)
    assert _train(recipe, pieces, tmp_path / "parts", resume=True) == whole


def test_the_rates_rise_stay_and_fall_for_each_mix() -> None:
    shape = NetworkShape(vocab_rows=8, hidden_size=8, mlp_size=8, n_layers=1, n_heads=1, shifted=False)
    recipe = Recipe(shape=shape, steps=1200, seed=0, first_steps=1000, warmup_steps=10, decay_share=0.5, last_rate=0.4)
    factors = [recipe.rate_factor(step) for step in range(recipe.steps)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:501] == [1.0] * 492
    assert factors[750] == pytest.approx(0.5)
    assert factors[999] == pytest.approx(0.002)
    assert max(factors[1000:]) == pytest.approx(0.4, rel=0.06)
    assert factors[1100] == pytest.approx(0.2)
    assert factors[1199] == pytest.approx(0.002)


def test_more_first_steps_than_steps_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path / "model"), "--steps", "5", "--first-steps", "6"])
    assert capsys.readouterr().err.endswith("argument --first-steps: 6 is not within 0 and --steps, 5\n")
    assert not (tmp_path / "model").exists()


def test_a_run_of_any_length_keeps_the_shares_of_the_mixes() -> None:
    assert [first_steps_of("llada", steps) for steps in (25_000, 2500, 1)] == [22_000, 2200, 1]
    assert first_steps_of("dream", 5000) == 0
