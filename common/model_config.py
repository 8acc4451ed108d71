"""What a checkpoint's config.json says of the model, in one vocabulary for both families.

No torch here: gateway and CLI read model facts too. Weight files are `common.checkpoint`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.checkpoint_files import read_object
from common.errors import CheckpointError, InvalidPrompt

CONFIG_FILE = "config.json"
_IF_MISSING = f"a model folder needs {CONFIG_FILE} and *.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts of one LLaDA- or Dream-format checkpoint.

    Ids 0 … vocab_size_tokens-1 are usable; `embedding_rows` may be larger (padding rows of the embedding matrix),
    such ids are refused in prompts, never proposed, and no part of the softmax. Biases and tying follow the checkpoint.
    """

    family: str
    model_id: str
    vocab_size_tokens: int
    embedding_rows: int
    mask_token_id: int
    eos_token_id: int
    pad_token_id: int | None
    max_canvas_tokens: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    mlp_size: int
    rope_theta: float
    rope_full_precision: bool
    rms_norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool
    linear_bias: bool

    @property
    def query_lookback_tokens(self) -> int:
        """Rows by which the model predicts ahead: row j predicts position j + lookback (1 for Dream, 0 for LLaDA)."""
        return 1 if self.family == "dream" else 0

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Raise `InvalidPrompt` when the prompt is empty, holds ids out of vocabulary, or the mask id."""
        if not token_ids:
            raise InvalidPrompt("prompt_token_ids", "the prompt is empty")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocab_size_tokens:
            bad = low if low < 0 else high
            raise InvalidPrompt(
                "prompt_token_ids", f"id {bad} is outside the vocabulary 0..{self.vocab_size_tokens - 1}"
            )
        if self.mask_token_id in token_ids:
            raise InvalidPrompt("prompt_token_ids", f"the mask id {self.mask_token_id} may not be part of a prompt")


def load_model_config(model_dir: Path) -> ModelConfig:
    """Read and check `model_dir`/config.json. Raises `CheckpointError` naming the file and the key."""
    path = model_dir / CONFIG_FILE
    fields = _Fields(path, read_object(path, if_missing=_IF_MISSING))
    config = _reader_for(fields)(fields, model_dir.resolve().name)
    _check_consistency(fields, config)
    return config


class _Fields:
    """Typed access to one config.json; every complaint names the file and the key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = values

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {key}: {problem}")

    def raw(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def integer(self, key: str, *, minimum: int = 1, default: int | None = None) -> int:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, f"must be a whole number of at least {minimum}, not {value!r}")
        return value

    def optional_id(self, key: str) -> int | None:
        return None if self.raw(key) is None else self.integer(key, minimum=0)

    def number(self, key: str) -> float:
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            raise self.error(key, f"must be a finite number above 0, not {value!r}")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def require(self, key: str, allowed: Sequence[Any]) -> None:
        """Refuse variants that the engine does not implement; a missing key counts as None."""
        if self.raw(key) not in allowed:
            names = ", ".join(json.dumps(value) for value in allowed)
            raise self.error(key, f"{self.raw(key)!r} is not supported (supported: {names})")


def _read_llada(fields: _Fields, model_id: str) -> ModelConfig:
    """LLaDA: an OLMo-style Llama block (pre-norm RMSNorm, RoPE, gated SiLU)."""
    linear_bias = fields.flag("include_bias")
    for key, allowed in {
        "activation_type": (None, "silu"),
        "block_type": (None, "llama"),
        "layer_norm_type": (None, "rms"),
        "layer_norm_with_affine": (None, True),
        "bias_for_layer_norm": (False,) if linear_bias else (None, False),
        "rope": (None, True),
        "rope_scaling": (None,),
        "alibi": (None, False),
        "attention_layer_norm": (None, False),
        "input_emb_norm": (None, False),
        "scale_logits": (None, False),
        "multi_query_attention": (None, False),
        "block_group_size": (None, 1),
        "clip_qkv": (None,),
    }.items():
        fields.require(key, allowed)
    n_heads, hidden = fields.integer("n_heads"), fields.integer("d_model")
    vocab = fields.integer("vocab_size")
    return ModelConfig(
        family="llada",
        model_id=model_id,
        vocab_size_tokens=vocab,
        embedding_rows=fields.integer("embedding_size", default=vocab),
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        eos_token_id=fields.integer("eos_token_id", minimum=0),
        pad_token_id=fields.optional_id("pad_token_id"),
        max_canvas_tokens=fields.integer("max_sequence_length"),
        n_layers=fields.integer("n_layers"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("n_kv_heads", default=n_heads),
        head_dim=hidden // n_heads,
        hidden_size=hidden,
        mlp_size=fields.integer("mlp_hidden_size"),
        rope_theta=fields.number("rope_theta"),
        rope_full_precision=fields.flag("rope_full_precision", default=True),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied_embeddings=fields.flag("weight_tying"),
        qkv_bias=linear_bias or fields.flag("include_qkv_bias"),
        linear_bias=linear_bias,
    )


def _read_dream(fields: _Fields, model_id: str) -> ModelConfig:
    """Dream: Qwen2's layout, read bidirectionally, predicting one position ahead."""
    fields.require("hidden_act", (None, "silu"))
    fields.require("rope_scaling", (None,))
    fields.require("use_sliding_window", (None, False))
    n_heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    vocab = fields.integer("vocab_size")
    return ModelConfig(
        family="dream",
        model_id=model_id,
        vocab_size_tokens=vocab,
        embedding_rows=vocab,
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        eos_token_id=fields.integer("eos_token_id", minimum=0),
        pad_token_id=fields.optional_id("pad_token_id"),
        max_canvas_tokens=fields.integer("max_position_embeddings"),
        n_layers=fields.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", default=n_heads),
        head_dim=hidden // n_heads,
        hidden_size=hidden,
        mlp_size=fields.integer("intermediate_size"),
        rope_theta=fields.number("rope_theta"),
        rope_full_precision=False,
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=True,
        linear_bias=False,
    )


_READERS: dict[str, Callable[[_Fields, str], ModelConfig]] = {"llada": _read_llada, "dream": _read_dream}


def _reader_for(fields: _Fields) -> Callable[[_Fields, str], ModelConfig]:
    model_type = fields.raw("model_type")
    reader = _READERS.get(model_type.lower()) if isinstance(model_type, str) else None
    if reader is None:
        raise fields.error("model_type", f"{model_type!r} is not supported (supported: llada, Dream)")
    return reader


def _check_consistency(fields: _Fields, config: ModelConfig) -> None:
    """Refuse numbers that contradict each other before any tensor is looked at."""
    if config.hidden_size % config.n_heads or config.head_dim % 2:
        raise fields.error("heads", f"{config.n_heads} heads do not split {config.hidden_size} into even head sizes")
    if config.n_heads % config.n_kv_heads:
        raise fields.error("kv heads", f"{config.n_heads} query heads cannot share {config.n_kv_heads} K/V heads")
    if config.embedding_rows < config.vocab_size_tokens:
        raise fields.error("embedding_size", f"{config.embedding_rows} rows for {config.vocab_size_tokens} ids")
    for key, token_id in (("mask_token_id", config.mask_token_id), ("eos_token_id", config.eos_token_id)):
        if token_id >= config.vocab_size_tokens:
            raise fields.error(key, f"{token_id} is outside the vocabulary 0..{config.vocab_size_tokens - 1}")
    if config.mask_token_id == config.eos_token_id:
        raise fields.error("mask_token_id", f"equals eos_token_id ({config.eos_token_id})")
