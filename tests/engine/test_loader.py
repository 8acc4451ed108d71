"""Checkpoints of every supported shape load into fused weights and compute what an independent model computes."""

from __future__ import annotations

import json
import random
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.checkpoint import check_checkpoint
from common.engine.engine import Engine
from common.engine.loader import load_weights
from common.errors import CheckpointError, ConfigError
from tests.engine.checkpoints import GOLDEN_DIR, NOT_FINITE, copy_golden, write_checkpoint
from tests.engine.reference_model import reference_logits

CANVAS = random.Random(0).choices(range(512), k=45)

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llada": ("llada-gqa", {}),
    "llada-n_kv_heads-null": ("llada-mha", {"n_kv_heads": None}),
    "llada-multi-query": ("llada-gqa", {"n_kv_heads": 1}),
    "llada-qkv-bias": ("llada-gqa", {"include_qkv_bias": True}),
    "llada-all-biases": ("llada-gqa", {"include_bias": True}),
    "llada-tied": ("llada-mha", {"weight_tying": True}),
    "llada-padded-embedding": ("llada-mha", {"embedding_size": 544}),
    "llada-padded-embedding-tied": ("llada-mha", {"embedding_size": 544, "weight_tying": True}),
    "llada-odd-sizes": ("llada-gqa", {"d_model": 72, "n_heads": 6, "n_kv_heads": 3, "mlp_hidden_size": 52}),
    "dream": ("dream-gqa", {}),
    "dream-tied": ("dream-gqa", {"tie_word_embeddings": True}),
    "dream-mha": ("dream-gqa", {"num_key_value_heads": 4}),
}


def load(model_dir: Path, **settings: Any) -> Engine:
    defaults: dict[str, Any] = {"device": "cpu", "dtype": None, "num_pages": 8}
    return Engine.load(model_dir, **(defaults | settings))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_an_independent_model(tmp_path, variant):
    base, changes = VARIANTS[variant]
    model_dir = write_checkpoint(tmp_path / "model", base, **changes)
    logits = load(model_dir).canvas_logits(CANVAS)
    expected = reference_logits(model_dir, CANVAS)
    assert logits.shape == (len(CANVAS), 512)
    assert (logits.double() - expected[:, :512]).abs().max() < 1e-4


def test_ids_beyond_the_vocabulary_are_never_proposed(tmp_path):
    """Padding rows of the embedding matrix would win here: they are no part of the vocabulary."""
    model_dir = write_checkpoint(tmp_path, "llada-mha", embedding_size=544)
    tensors = load_file(model_dir / "model.safetensors")
    tensors["model.transformer.ff_out.weight"][512:] *= 10.0
    save_file(tensors, model_dir / "model.safetensors")
    assert (reference_logits(model_dir, CANVAS).argmax(-1) >= 512).any()
    assert load(model_dir).canvas_logits(CANVAS).shape[1] == 512


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.06), ("float16", 0.01)])
def test_reduced_precision_stays_close(dtype, tolerance):
    full = load(GOLDEN_DIR / "llada-gqa").canvas_logits(CANVAS)
    engine = load(GOLDEN_DIR / "llada-gqa", dtype=dtype)
    assert engine.pool.tensor.dtype == getattr(torch, dtype) and engine.layout.dtype == dtype
    error = (engine.canvas_logits(CANVAS) - full).norm() / full.norm()
    assert 0.0 < error < tolerance


def storages(value) -> dict[int, int]:
    """Bytes of every tensor storage that a tree of dataclasses keeps alive, by address."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()}
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value
    return {} if parts is None else {key: size for part in parts for key, size in storages(part).items()}


@pytest.mark.parametrize("base", ["llada-gqa", "dream-gqa"])
def test_fusing_keeps_no_copy_of_the_originals(base):
    index = check_checkpoint(GOLDEN_DIR / base)
    weights = load_weights(index, device=torch.device("cpu"), dtype=torch.float32)
    needed = sum(torch.Size(entry.shape).numel() * 4 for entry in index.tensors.values())
    assert sum(storages(weights).values()) == needed
    assert weights.layers[0].qkv.weight.shape == (64 + 2 * 32, 64)
    assert weights.layers[0].gate_up.weight.shape == (2 * 160, 64)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_stored_half_precision_widens_exactly(tmp_path, stored):
    tensors = {name: tensor.to(stored) for name, tensor in copy_golden("llada-gqa", tmp_path).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    logits = load(tmp_path).canvas_logits(CANVAS)
    assert (logits.double() - reference_logits(tmp_path, CANVAS)).abs().max() < 1e-4


def test_a_sharded_checkpoint_is_the_same_model(tmp_path):
    tensors = copy_golden("dream-gqa", tmp_path)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    save_file({names[0]: torch.zeros(1)}, tmp_path / "stray.safetensors")
    assert torch.equal(load(tmp_path).canvas_logits(CANVAS), load(GOLDEN_DIR / "dream-gqa").canvas_logits(CANVAS))


def test_a_file_that_vanishes_between_check_and_load_is_named(tmp_path):
    save_file(copy_golden("llada-mha", tmp_path), tmp_path / "model.safetensors")
    index = check_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor model\.transformer\.wte\.weight"):
        load_weights(index, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("number", NOT_FINITE.values(), ids=NOT_FINITE)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", ["model.transformer.wte.weight", "model.transformer.blocks.1.v_proj.bias"])
def test_weights_that_are_not_finite_are_named(tmp_path, where, stored, number):
    model_dir = write_checkpoint(tmp_path, "llada-gqa", include_qkv_bias=True)
    tensors = {name: tensor.to(stored) for name, tensor in load_file(model_dir / "model.safetensors").items()}
    tensors[where].view(-1)[7] = number
    save_file(tensors, model_dir / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(model_dir)
    assert str(caught.value) == f"{model_dir / 'model.safetensors'}: tensor {where} holds NaN or infinity"


def test_weights_that_the_dtype_cannot_hold_are_named(tmp_path):
    """The largest numbers of what is stored are numbers all the same."""
    largest = torch.finfo(torch.float32).max
    tensors = copy_golden("llada-gqa", tmp_path)
    name = "model.transformer.ln_f.weight"
    tensors[name][3:5] = torch.tensor([largest, -largest])
    save_file(tensors, tmp_path / "model.safetensors")
    load(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{name} holds numbers that torch\.float16 cannot hold"):
        load(tmp_path, dtype="float16")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"device": "tpu"}, "device"),
        ({"device": "meta"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"device": "cuda:256"}, "device"),
        ({"dtype": "float64"}, "dtype"),
        ({"num_pages": 0}, "num_pages"),
        ({"page_size_tokens": 0}, "page_size_tokens"),
    ],
)
def test_settings_that_cannot_be_had_are_refused_by_name(settings, match):
    with pytest.raises(ConfigError, match=match):
        load(GOLDEN_DIR / "llada-mha", **settings)


def test_the_layout_tells_checkpoints_apart(tmp_path):
    one = load(write_checkpoint(tmp_path / "a" / "m", "llada-gqa", seed=1)).layout
    same = load(write_checkpoint(tmp_path / "b" / "m", "llada-gqa", seed=1)).layout
    other = load(write_checkpoint(tmp_path / "c" / "m", "llada-gqa", seed=2)).layout
    assert one.fingerprint == same.fingerprint != other.fingerprint
