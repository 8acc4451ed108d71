"""The trained network as a Hugging Face folder of its family: config.json, model.safetensors (float16), tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from common.checkpoint import WEIGHTS_FILE, tensor_names
from common.checkpoint_files import write_object
from common.config_document import ModelSizes, config_document
from common.model_config import CONFIG_FILE, load_model_config
from common.training.network import MAX_CANVAS_TOKENS, Network
from common.training.recipe import NetworkShape
from common.training.vocabulary import EOS, MASK, control_ids, vocabulary_rows, write_tokenizer


def write_tokenizer_and_config(model_dir: Path, shape: NetworkShape, pieces: list[str]) -> None:
    """Everything but the weights; the folder is created when absent."""
    model_dir.mkdir(parents=True, exist_ok=True)
    controls = control_ids(pieces)
    assert shape.vocab_rows == vocabulary_rows(pieces)
    sizes = ModelSizes(
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_heads,
        hidden_size=shape.hidden_size,
        mlp_size=shape.mlp_size,
        max_canvas_tokens=MAX_CANVAS_TOKENS,
        vocab_rows=shape.vocab_rows,
    )
    facts = {
        "mask_token_id": controls[MASK],
        "eos_token_id": controls[EOS],
        "pad_token_id": controls[EOS],
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "torch_dtype": "float16",
    }
    family, of_family = ("dream", {}) if shape.shifted else ("llada", {"include_qkv_bias": True})
    write_object(model_dir / CONFIG_FILE, config_document(family, sizes, facts | of_family))
    write_tokenizer(model_dir, pieces)


def write_weights(model_dir: Path, network: Network, *, dtype: torch.dtype = torch.float16) -> None:
    """The weights under their family's names, beside a config.json that is already there."""
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in _named(model_dir, network)}
    save_file(tensors, model_dir / WEIGHTS_FILE, metadata={"format": "pt"})


def _named(model_dir: Path, network: Network) -> Iterator[tuple[str, Tensor]]:
    names = tensor_names(load_model_config(model_dir))
    yield f"{names.embedding}.weight", network.embedding.weight
    yield f"{names.final_norm}.weight", network.final_norm
    yield f"{names.head}.weight", network.head.weight
    for layer, of in zip(network.each_layer(), names.layers, strict=True):
        yield f"{of.attention_norm}.weight", layer.attention_norm
        yield f"{of.mlp_norm}.weight", layer.mlp_norm
        yield f"{of.attention_out}.weight", layer.attention_out.weight
        yield f"{of.down}.weight", layer.down.weight
        for name, part in zip((of.q, of.k, of.v), layer.qkv.weight.chunk(3), strict=True):
            yield f"{name}.weight", part
        for name, part in zip((of.q, of.k, of.v), layer.qkv.bias.chunk(3), strict=True):
            yield f"{name}.bias", part
        for name, part in zip((of.gate, of.up), layer.gate_up.weight.chunk(2), strict=True):
            yield f"{name}.weight", part
