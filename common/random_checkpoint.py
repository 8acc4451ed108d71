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

from common.byte_tokenizer import byte_tokenizer
from common.checkpoint import WEIGHTS_FILE, expected_tensors
from common.checkpoint_files import write_object
from common.config_document import ModelSizes, config_document
from common.model_config import CONFIG_FILE, ModelConfig, load_model_config
from common.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

EOS_ID, PAD_ID, MASK_ID = 256, 257, 258
SPECIAL_TOKENS = {"<|endoftext|>": EOS_ID, "<|pad|>": PAD_ID, "<|mask|>": MASK_ID}
ROLE_TOKENS = {"<|system|>": 259, "<|user|>": 260, "<|assistant|>": 261}
"""What the chat template, where one is asked for, begins a turn with."""
VOCAB_SIZE_TOKENS = 264

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_FACTS = {
    "mask_token_id": MASK_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "torch_dtype": "float32",
}
_NUMBERS = {
    "llada": {"rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "dream": {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0},
}
"""Those of the published models."""
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
    sizes = ModelSizes(
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        hidden_size=hidden_size,
        mlp_size=mlp_size,
        max_canvas_tokens=max_canvas_tokens,
        vocab_rows=VOCAB_SIZE_TOKENS,
    )
    document = config_document(family, sizes, _FACTS | _NUMBERS.get(family, {}))
    model_dir.mkdir(parents=True, exist_ok=True)
    write_object(model_dir / CONFIG_FILE, document)
    special_tokens = SPECIAL_TOKENS | ROLE_TOKENS if chat else SPECIAL_TOKENS
    write_object(model_dir / TOKENIZER_FILE, byte_tokenizer(special_tokens))
    if chat:
        write_object(model_dir / TOKENIZER_CONFIG_FILE, {"chat_template": _CHAT_TEMPLATE})
    _write_weights(model_dir / WEIGHTS_FILE, load_model_config(model_dir), random.Random(seed))


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
