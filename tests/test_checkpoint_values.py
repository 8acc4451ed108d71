"""Weights looked at without loading them: whatever is not finite is found and named, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common import checkpoint_values
from common.checkpoint import check_checkpoint
from common.checkpoint_values import check_values
from common.errors import CheckpointError
from tests.engine.checkpoints import NOT_FINITE, spoiled_copy, write_checkpoint

LARGE = "model.transformer.wte.weight"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def chunk_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks so short that a tensor takes many, and ends within one."""
    monkeypatch.setattr(checkpoint_values, "_CHUNK_BYTES", 1000)
    return 1000


def stored_as(dtype: torch.dtype, model_dir: Path, **numbers: float) -> Path:
    """A random checkpoint of that dtype; `numbers` replace the large tensor's at those places (`at_7=nan`)."""
    write_checkpoint(model_dir, "llada-gqa")
    weights = model_dir / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(weights).items()}
    for place, number in numbers.items():
        tensors[LARGE].view(-1)[int(place.removeprefix("at_"))] = number
    save_file(tensors, weights)
    return weights


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 250, 499, 500, 512 * 64 - 1])
@pytest.mark.parametrize("number", NOT_FINITE.values(), ids=NOT_FINITE)
def test_a_number_that_is_not_finite_is_found_anywhere(
    dtype: torch.dtype, place: int, number: float, chunk_bytes: int, tmp_path: Path
) -> None:
    weights = stored_as(dtype, tmp_path, **{f"at_{place}": number})
    with pytest.raises(CheckpointError) as caught:
        check_values(check_checkpoint(tmp_path))
    assert str(caught.value) == f"{weights}: tensor {LARGE} holds NaN or infinity"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_that_is_finite_will_do(dtype: torch.dtype, chunk_bytes: int, tmp_path: Path) -> None:
    facts = torch.finfo(dtype)
    stored_as(dtype, tmp_path, at_0=facts.max, at_1=facts.min, at_2=facts.smallest_normal, at_3=-0.0)
    check_values(check_checkpoint(tmp_path))


def test_whoever_waits_is_told_of_every_tensor(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "dream-gqa")
    index = check_checkpoint(tmp_path)
    told: list[int] = []
    check_values(index, on_tensor=told.append)
    assert told == list(range(1, len(index.tensors) + 1))


def test_the_one_tensor_among_many_is_named(tmp_path: Path) -> None:
    name = spoiled_copy(write_checkpoint(tmp_path / "good", "dream-gqa"), tmp_path / "bad", float("nan"))
    check_values(check_checkpoint(tmp_path / "good"))
    with pytest.raises(CheckpointError, match=re.escape(f"tensor {name} holds")):
        check_values(check_checkpoint(tmp_path / "bad"))


@pytest.mark.parametrize("spoil", ["shorter", "gone"])
def test_a_file_that_changes_between_both_checks_is_named(spoil: str, tmp_path: Path) -> None:
    weights = stored_as(torch.float32, tmp_path)
    index = check_checkpoint(tmp_path)
    if spoil == "gone":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-2000])
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors: tensor .*: .*{'No such' if spoil == 'gone' else spoil}"
    ):
        check_values(index)
