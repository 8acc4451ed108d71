"""KvLayout: equal facts, equal fingerprint; any other fact, another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.core.kv_layout import KvLayout

LAYOUT = KvLayout(
    model_id="m",
    weights_fingerprint="w",
    dtype="bfloat16",
    page_size_tokens=16,
    n_layers=32,
    n_kv_heads=8,
    head_dim=128,
)


def test_bytes():
    assert LAYOUT.page_bytes_per_layer == 65_536
    assert LAYOUT.block_bytes(10) == 32 * 10 * 65_536


def test_the_fingerprint_is_a_function_of_the_facts():
    assert LAYOUT.fingerprint == replace(LAYOUT).fingerprint
    assert len(LAYOUT.fingerprint) == 64 and int(LAYOUT.fingerprint, 16)


@pytest.mark.parametrize(
    "change",
    [
        {"model_id": "n"},
        {"weights_fingerprint": "x"},
        {"dtype": "float16"},
        {"page_size_tokens": 8},
        {"n_layers": 31},
        {"n_kv_heads": 4},
        {"head_dim": 64},
        {"version": 2},
    ],
)
def test_every_fact_counts(change):
    assert replace(LAYOUT, **change).fingerprint != LAYOUT.fingerprint


def test_the_models_fingerprint_is_about_answers_and_not_about_pages():
    same = replace(LAYOUT, model_id="n", page_size_tokens=8)
    assert same.model_fingerprint == LAYOUT.model_fingerprint
    others = {
        replace(LAYOUT, weights_fingerprint="x").model_fingerprint,
        replace(LAYOUT, dtype="float16").model_fingerprint,
    }
    assert len(others | {LAYOUT.model_fingerprint}) == 3
