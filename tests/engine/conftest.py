"""Engines for tests: loaded once, on CPU, one thread unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from common.engine.engine import Engine
from tests.engine.checkpoints import GOLDEN_DIR, write_checkpoint


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Start on one thread, and leave the process as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def golden_engine() -> Callable[[str], Engine]:
    """Engine of a golden checkpoint by name; shared, so tests open only pages they own at the time."""
    engines: dict[str, Engine] = {}

    def load(name: str) -> Engine:
        if name not in engines:
            engines[name] = Engine.load(GOLDEN_DIR / name, device="cpu", dtype=None, num_pages=32)
        return engines[name]

    return load


@pytest.fixture(scope="session")
def wide_engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Engine]:
    """Engines (by golden base) whose sizes divide badly and whose batches are large enough for torch to use threads."""
    engines: dict[str, Engine] = {}

    def load(base: str) -> Engine:
        if base not in engines:
            wide = {"mlp_hidden_size": 348} if base.startswith("llada") else {"intermediate_size": 348}
            model_dir: Path = write_checkpoint(tmp_path_factory.mktemp("wide") / base, base, seed=3, **wide)
            engines[base] = Engine.load(model_dir, device="cpu", dtype=None, num_pages=256)
        return engines[base]

    return load
