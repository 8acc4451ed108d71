"""What a worker decides for itself: the size of its pool, the name it gives its peers."""

from __future__ import annotations

import dataclasses

import pytest

from common.model_config import ModelConfig, load_model_config
from common.worker.pool_size import CPU_POOL_BYTES, auto_pages, pool_bytes
from tests.engine.checkpoints import GOLDEN_DIR


@pytest.fixture
def model() -> ModelConfig:
    return load_model_config(GOLDEN_DIR / "llada-gqa")


def pages(model: ModelConfig, **changes: int) -> int:
    values = {"page_size_tokens": 16, "max_batch_size": 10_000, "pool_bytes": 1_000_000} | changes
    return auto_pages(model=model, dtype="float32", **values)


def test_an_automatic_pool_fills_the_bytes_it_is_given(model: ModelConfig) -> None:
    # 3 layers, K and V, 16 positions, 2 heads of 16 float32: 12 288 bytes a page.
    assert pages(model) == 1_000_000 // 12_288


def test_an_automatic_pool_is_no_larger_than_a_full_batch_can_use(model: ModelConfig) -> None:
    assert pages(model, max_batch_size=2) == 2 * (512 // 16)


def test_an_automatic_pool_has_a_page_at_least(model: ModelConfig) -> None:
    assert pages(model, pool_bytes=10) == 1


def test_a_larger_model_gets_fewer_pages(model: ModelConfig) -> None:
    assert pages(dataclasses.replace(model, n_layers=6)) == 1_000_000 // 24_576


def test_on_a_gpu_the_pool_takes_a_share_of_what_the_weights_leave() -> None:
    assert pool_bytes(weights_bytes=5, free_bytes=None) == CPU_POOL_BYTES
    assert pool_bytes(weights_bytes=20_000, free_bytes=120_000) == 80_000
    assert pool_bytes(weights_bytes=20_000, free_bytes=10_000) == 0
