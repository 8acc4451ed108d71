"""Small checkpoints for tests: edited configs with random weights of the shapes they call for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from common.checkpoint import expected_tensors
from common.model_config import load_model_config

GOLDEN_DIR = Path(__file__).parents[1] / "data" / "golden"
GOLDEN_NAMES = ("llada-mha", "llada-gqa", "dream-gqa")


def write_checkpoint(model_dir: Path, base: str, *, seed: int = 0, **changes: Any) -> Path:
    """A folder with the golden config `base`, `changes` applied, and random float32 weights."""
    model_dir.mkdir(parents=True, exist_ok=True)
    config = json.loads((GOLDEN_DIR / base / "config.json").read_text()) | changes
    (model_dir / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_tensors(load_model_config(model_dir)):
        scale = 0.8 if len(shape) == 1 else 0.25
        tensors[name] = scale * torch.randn(shape, generator=generator)
    save_file(tensors, model_dir / "model.safetensors")
    return model_dir


def copy_golden(name: str, model_dir: Path) -> dict[str, torch.Tensor]:
    """Copy a golden's config.json to `model_dir`, without weights; return its tensors."""
    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / "config.json").write_bytes((GOLDEN_DIR / name / "config.json").read_bytes())
    return load_file(GOLDEN_DIR / name / "model.safetensors")


NOT_FINITE = {"NaN": float("nan"), "infinity": float("inf"), "minus infinity": float("-inf")}


def spoiled_copy(model_dir: Path, target: Path, number: float) -> str:
    """Copy a one-file checkpoint, and let one number of some tensor in the middle be `number`; that tensor's name."""
    shutil.copytree(model_dir, target)
    weights = target / "model.safetensors"
    tensors = load_file(weights)
    name = sorted(tensors)[len(tensors) // 2]
    tensors[name].view(-1)[-1] = number
    save_file(tensors, weights)
    return name
