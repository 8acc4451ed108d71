"""A config.json in its family's own words, as `common.model_config` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a network and its longest canvas; `vocab_rows` are the rows of the embedding."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    hidden_size: int
    mlp_size: int
    max_canvas_tokens: int
    vocab_rows: int


def config_document(family: str, sizes: ModelSizes, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a `llada` or `dream` model. `facts` are keys that both families have: ids, epsilon, theta, dtype.

    Raises `ConfigError` for an unknown family.
    """
    if family not in _FAMILIES:
        raise ConfigError(f"family: {family!r} is not one of {', '.join(_FAMILIES)}")
    return {**_FAMILIES[family](sizes), "vocab_size": sizes.vocab_rows, **facts}


def _llada(sizes: ModelSizes) -> dict[str, Any]:
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "rope_full_precision": True,
        "d_model": sizes.hidden_size,
        "n_layers": sizes.n_layers,
        "n_heads": sizes.n_heads,
        "n_kv_heads": sizes.n_kv_heads,
        "mlp_hidden_size": sizes.mlp_size,
        "max_sequence_length": sizes.max_canvas_tokens,
        "embedding_size": sizes.vocab_rows,
        "include_bias": False,
        "include_qkv_bias": False,
        "weight_tying": False,
    }


def _dream(sizes: ModelSizes) -> dict[str, Any]:
    return {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.mlp_size,
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "num_key_value_heads": sizes.n_kv_heads,
        "max_position_embeddings": sizes.max_canvas_tokens,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }


_FAMILIES = {"llada": _llada, "dream": _dream}
