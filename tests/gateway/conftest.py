"""A small model folder, a scripted scheduler, and a gateway between it and the test."""

from __future__ import annotations

import pytest

from common.random_checkpoint import build_random_checkpoint
from tests.gateway.running_gateway import MAX_CANVAS_TOKENS, running_gateway
from tests.gateway.scripted_scheduler import ScriptedScheduler


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    build_random_checkpoint(
        path, n_layers=1, n_heads=1, n_kv_heads=1, hidden_size=8, mlp_size=8, max_canvas_tokens=MAX_CANVAS_TOKENS
    )
    return path


@pytest.fixture
async def scheduler():
    scripted = ScriptedScheduler()
    async with scripted.serving():
        yield scripted


@pytest.fixture
def start_gateway(model_dir, scheduler, tmp_path):
    """Call it for a running gateway (an async context manager) with other settings."""

    def start(**settings):
        return running_gateway(model_dir, scheduler.address, tmp_path / "gateway.json", **settings)

    return start


@pytest.fixture
async def client(start_gateway):
    async with start_gateway() as running:
        yield running
