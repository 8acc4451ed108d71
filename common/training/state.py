"""What a run needs to go on where it stopped: network, optimizers, the step, and the recipe they belong to."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, save_file

from common.errors import ConfigError
from common.training.network import Network
from common.training.optimizers import Optimizers
from common.training.recipe import Recipe

STATE_FILE = "training-state.json"
_TENSORS_FILE = "training-state-{step}.safetensors"


def save_state(folder: Path, *, recipe: Recipe, network: Network, optimizers: Optimizers, step: int) -> None:
    """Write the state after `step` steps. A run that dies meanwhile leaves the state before it intact."""
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"optimizers.{name}": value for name, value in optimizers.tensors().items()}
    tensors_path = folder / _TENSORS_FILE.format(step=step)
    save_file(tensors, tensors_path)
    document = {"step": step, "tensors": tensors_path.name, "recipe": asdict(recipe)}
    new = folder / f"{STATE_FILE}.new"
    new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(new, folder / STATE_FILE)
    for old in folder.glob(_TENSORS_FILE.format(step="*")):
        if old != tensors_path:
            old.unlink()


def load_state(folder: Path, *, recipe: Recipe, network: Network, optimizers: Optimizers) -> int:
    """Fill network and optimizers; returns the steps done.

    Raises `ConfigError` when the folder holds no state, or one of another recipe (naming what differs).
    """
    path = folder / STATE_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file: there is no run to resume") from None
    wanted = asdict(recipe)
    differing = sorted(key for key in wanted if document["recipe"].get(key) != wanted[key])
    if differing:
        raise ConfigError(f"{path}: belongs to a run with other {', '.join(differing)}")
    tensors = load_file(folder / document["tensors"])
    parts: dict[str, dict[str, object]] = {"network": {}, "optimizers": {}}
    for name, value in tensors.items():
        owner, rest = name.split(".", 1)
        parts[owner][rest] = value
    network.load_state_dict(parts["network"])
    optimizers.restore(parts["optimizers"])  # type: ignore[arg-type]  # load_file gives tensors
    return int(document["step"])
