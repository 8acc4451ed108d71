"""A small random model with a byte-level tokenizer: for tests, and for whatever needs a checkpoint but no sense.

Written with the standard library alone: the same seed gives the same bytes whatever torch is installed, or none.
"""

from __future__ import annotations

import array
import json
import math
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.checkpoint import expected_tensors
from common.errors import ConfigError
from common.model_config import CONFIG_FILE, ModelConfig, load_model_config
from common.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, byte_characters

WEIGHTS_FILE = "model.safetensors"
SPECIAL_TOKENS = {256: "<|endoftext|>", 257: "<|pad|>", 258: "<|mask|>"}
EOS_ID, PAD_ID, MASK_ID = SPECIAL_TOKENS
ROLE_TOKENS = {259: "<|system|>", 260: "<|user|>", 261: "<|assistant|>"}
"""What the chat template, where one is asked for, begins a turn with."""
VOCAB_SIZE_TOKENS = 264

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_LAYER_GAIN = 1.6
_HEAD_STD = 0.42
_EOS_HEAD_STD = 0.32
_RARE_HEAD_STD = 0.02


def build_random_checkpoint(
    model_dir: Path,
    *,
    family: str = "llada",
    seed: int = 0,
    n_layers: int = 4,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    hidden_size: int = 64,
    mlp_size: int = 160,
    max_canvas_tokens: int = 4096,
    chat: bool = False,
) -> None:
    """Write config.json, model.safetensors (float32) and tokenizer.json into `model_dir` (created when absent).

    With `chat` also tokenizer_config.json with a chat template, and its role tokens in the vocabulary.

    Untrained, but alive: greedy confidences spread over (0, 1), so thresholds matter, and printable ASCII is far
    likelier than other bytes. Raises `ConfigError` for an unknown family.
    """
    sizes = {
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "hidden_size": hidden_size,
        "mlp_size": mlp_size,
        "max_canvas_tokens": max_canvas_tokens,
    }
    if family not in _CONFIGS:
        raise ConfigError(f"family: {family!r} is not one of {', '.join(_CONFIGS)}")
    model_dir.mkdir(parents=True, exist_ok=True)
    _write_json(model_dir / CONFIG_FILE, _CONFIGS[family](sizes))
    special_tokens = SPECIAL_TOKENS | ROLE_TOKENS if chat else SPECIAL_TOKENS
    _write_json(model_dir / TOKENIZER_FILE, _byte_tokenizer(special_tokens))
    if chat:
        _write_json(model_dir / TOKENIZER_CONFIG_FILE, {"chat_template": _CHAT_TEMPLATE})
    _write_weights(model_dir / WEIGHTS_FILE, load_model_config(model_dir), random.Random(seed))


def _llada_config(sizes: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "d_model": sizes["hidden_size"],
        "n_layers": sizes["n_layers"],
        "n_heads": sizes["n_heads"],
        "n_kv_heads": sizes["n_kv_heads"],
        "mlp_hidden_size": sizes["mlp_size"],
        "max_sequence_length": sizes["max_canvas_tokens"],
        "vocab_size": VOCAB_SIZE_TOKENS,
        "embedding_size": VOCAB_SIZE_TOKENS,
        "mask_token_id": MASK_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_full_precision": True,
        "include_bias": False,
        "include_qkv_bias": False,
        "weight_tying": False,
        "torch_dtype": "float32",
    }


def _dream_config(sizes: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        "hidden_act": "silu",
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["mlp_size"],
        "num_hidden_layers": sizes["n_layers"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes["n_kv_heads"],
        "max_position_embeddings": sizes["max_canvas_tokens"],
        "vocab_size": VOCAB_SIZE_TOKENS,
        "mask_token_id": MASK_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


_CONFIGS = {"llada": _llada_config, "dream": _dream_config}


def _byte_tokenizer(special_tokens: dict[int, str]) -> dict[str, Any]:
    """A byte-level BPE without merges: one token for each byte, ids 0 to 255, then the special tokens."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token_id, "content": content, **flags} for token_id, content in special_tokens.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        },
    }


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(path: Path, config: ModelConfig, generator: random.Random) -> None:
    """A safetensors file: header length, JSON header, then the tensors in the header's order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks = []
    offset_bytes = 0
    for name, shape in expected_tensors(config):
        values = array.array("f", _values(name, shape, generator))
        if sys.byteorder == "big":
            values.byteswap()
        chunk = values.tobytes()
        offsets = [offset_bytes, offset_bytes + len(chunk)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        chunks.append(chunk)
        offset_bytes += len(chunk)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(chunks))


def _values(name: str, shape: tuple[int, ...], generator: random.Random) -> Iterator[float]:
    """Initial values: norms 1, biases small, embeddings unit, projections scaled by their input, lm_head by token."""
    count = math.prod(shape)
    if "norm" in name or "ln_f" in name:
        return (1.0 for _ in range(count))
    if name.endswith(".bias"):
        return (generator.gauss(0.0, 0.1) for _ in range(count))
    if name in ("model.transformer.ff_out.weight", "lm_head.weight"):
        return _head_values(shape, generator)
    std = 1.0 if "wte" in name or "embed" in name else _LAYER_GAIN / math.sqrt(shape[-1])
    return (generator.gauss(0.0, std) for _ in range(count))


def _head_values(shape: tuple[int, ...], generator: random.Random) -> Iterator[float]:
    """Rows of printable ASCII can win, EOS now and then; those of other bytes and control tokens hardly ever do."""
    for token_id in range(shape[0]):
        std = _EOS_HEAD_STD if token_id == EOS_ID else _HEAD_STD if 0x20 <= token_id < 0x7F else _RARE_HEAD_STD
        for _ in range(shape[1]):
            yield generator.gauss(0.0, std)
