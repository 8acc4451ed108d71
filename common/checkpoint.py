"""Weight files of a checkpoint, read without torch: which tensors must exist, where they lie, and a fingerprint.

Only safetensors is read: an 8-byte little-endian header length, a JSON header, raw tensor bytes. Nothing in a
checkpoint is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from common.errors import CheckpointError
from common.model_config import CONFIG_FILE, ModelConfig, load_model_config

WEIGHTS_FILE = "model.safetensors"
"""Of a checkpoint that is one file."""
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_FINGERPRINT_WINDOWS = 64
_FINGERPRINT_WINDOW_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Tensor names (without .weight/.bias) of one transformer layer; `q`, `k`, `v` and `gate`, `up` get fused."""

    attention_norm: str
    q: str
    k: str
    v: str
    attention_out: str
    mlp_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """Tensor names of one model; `head` is absent from the file when embeddings are tied."""

    embedding: str
    final_norm: str
    head: str
    layers: tuple[LayerNames, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor as its file's header declares it; `dtype` is safetensors' name (F32, F16, BF16), and its bytes begin
    `offset_bytes` after the start of the file."""

    path: Path
    offset_bytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """A checkpoint whose every needed tensor is present with the right shape and a float dtype."""

    config: ModelConfig
    names: ModelNames
    tensors: Mapping[str, TensorEntry]


def check_checkpoint(model_dir: Path) -> CheckpointIndex:
    """Check config and safetensors headers. Raises `CheckpointError` naming the file and the tensor."""
    config = load_model_config(model_dir)
    names = tensor_names(config)
    declared = _declared_tensors(model_dir)
    needed = {name: _checked(model_dir, name, shape, declared) for name, shape in expected_tensors(config)}
    return CheckpointIndex(config=config, names=names, tensors=MappingProxyType(needed))


def weights_fingerprint(model_dir: Path) -> str:
    """Hex SHA-256 over config, headers, sizes and 64 sampled windows of every weights file (fast on 16 GB).

    Raises `CheckpointError` when the folder has no weights. Names of files and folders are not part of it.
    """
    digest = hashlib.sha256(_read_bytes(model_dir / CONFIG_FILE))
    for path in _weight_files(model_dir):
        size_bytes = path.stat().st_size
        header_bytes = len(_read_header(path)[0])
        digest.update(struct.pack("<QQ", size_bytes, header_bytes))
        with path.open("rb") as file:
            digest.update(file.read(8 + header_bytes))
            body_bytes = size_bytes - 8 - header_bytes
            stride_bytes = max(_FINGERPRINT_WINDOW_BYTES, body_bytes // _FINGERPRINT_WINDOWS)
            for offset in range(0, body_bytes, stride_bytes):
                file.seek(8 + header_bytes + offset)
                digest.update(file.read(_FINGERPRINT_WINDOW_BYTES))
    return digest.hexdigest()


def tensor_names(config: ModelConfig) -> ModelNames:
    """Where the family of `config` keeps each weight."""
    return _NAMES[config.family](config.n_layers)


def _llada_names(n_layers: int) -> ModelNames:
    root = "model.transformer"
    return ModelNames(
        embedding=f"{root}.wte",
        final_norm=f"{root}.ln_f",
        head=f"{root}.ff_out",
        layers=tuple(_llada_layer(f"{root}.blocks.{layer}") for layer in range(n_layers)),
    )


def _llada_layer(prefix: str) -> LayerNames:
    return LayerNames(
        attention_norm=f"{prefix}.attn_norm",
        q=f"{prefix}.q_proj",
        k=f"{prefix}.k_proj",
        v=f"{prefix}.v_proj",
        attention_out=f"{prefix}.attn_out",
        mlp_norm=f"{prefix}.ff_norm",
        gate=f"{prefix}.ff_proj",
        up=f"{prefix}.up_proj",
        down=f"{prefix}.ff_out",
    )


def _dream_names(n_layers: int) -> ModelNames:
    return ModelNames(
        embedding="model.embed_tokens",
        final_norm="model.norm",
        head="lm_head",
        layers=tuple(_dream_layer(f"model.layers.{layer}") for layer in range(n_layers)),
    )


def _dream_layer(prefix: str) -> LayerNames:
    return LayerNames(
        attention_norm=f"{prefix}.input_layernorm",
        q=f"{prefix}.self_attn.q_proj",
        k=f"{prefix}.self_attn.k_proj",
        v=f"{prefix}.self_attn.v_proj",
        attention_out=f"{prefix}.self_attn.o_proj",
        mlp_norm=f"{prefix}.post_attention_layernorm",
        gate=f"{prefix}.mlp.gate_proj",
        up=f"{prefix}.mlp.up_proj",
        down=f"{prefix}.mlp.down_proj",
    )


_NAMES = {"llada": _llada_names, "dream": _dream_names}


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor the engine needs, with its shape."""
    names = tensor_names(config)
    hidden, rows = config.hidden_size, config.embedding_rows
    yield f"{names.embedding}.weight", (rows, hidden)
    yield f"{names.final_norm}.weight", (hidden,)
    if not config.tied_embeddings:
        yield from _linear(names.head, rows, hidden, bias=config.linear_bias)
    kv_width = config.n_kv_heads * config.head_dim
    for layer in names.layers:
        yield f"{layer.attention_norm}.weight", (hidden,)
        yield f"{layer.mlp_norm}.weight", (hidden,)
        yield from _linear(layer.q, hidden, hidden, bias=config.qkv_bias)
        yield from _linear(layer.k, kv_width, hidden, bias=config.qkv_bias)
        yield from _linear(layer.v, kv_width, hidden, bias=config.qkv_bias)
        yield from _linear(layer.attention_out, hidden, hidden, bias=config.linear_bias)
        yield from _linear(layer.gate, config.mlp_size, hidden, bias=config.linear_bias)
        yield from _linear(layer.up, config.mlp_size, hidden, bias=config.linear_bias)
        yield from _linear(layer.down, hidden, config.mlp_size, bias=config.linear_bias)


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _checked(model_dir: Path, name: str, shape: tuple[int, ...], declared: Mapping[str, TensorEntry]) -> TensorEntry:
    entry = declared.get(name)
    if entry is None:
        raise _missing(model_dir, name)
    if entry.shape != shape:
        raise CheckpointError(f"{entry.path}: tensor {name} has shape {list(entry.shape)}, config says {list(shape)}")
    if entry.dtype not in FLOAT_BYTES:
        raise CheckpointError(f"{entry.path}: tensor {name} has dtype {entry.dtype}, supported: F32, F16, BF16")
    return entry


def _missing(model_dir: Path, name: str) -> CheckpointError:
    """Names the file that should hold the tensor: the only one, else the index that says what lies where."""
    paths, index_path = _weight_files(model_dir), model_dir / INDEX_FILE
    if len(paths) == 1:
        return CheckpointError(f"{paths[0]}: tensor {name} is missing")
    place = index_path if index_path.exists() else model_dir
    return CheckpointError(f"{place}: tensor {name} is in none of the {len(paths)} *.safetensors files")


def _declared_tensors(model_dir: Path) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for path in _weight_files(model_dir):
        for name, entry in _read_entries(path):
            if name in tensors:
                raise CheckpointError(f"{path}: tensor {name} is also in {tensors[name].path}")
            tensors[name] = entry
    return tensors


def _weight_files(model_dir: Path) -> list[Path]:
    """The files that hold the weights, sorted: those the index names, or every *.safetensors without an index."""
    index_path = model_dir / INDEX_FILE
    if not index_path.exists():
        paths = sorted(model_dir.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(f"{model_dir}: no *.safetensors file (other weight formats are not loaded)")
        return paths
    try:
        names = set(json.loads(_read_bytes(index_path))["weight_map"].values())
        if any(not isinstance(name, str) or name != os.path.basename(name) for name in names):
            raise ValueError("weight_map must name files of this folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index_path}: malformed index: {error!r}") from None
    return [model_dir / name for name in sorted(names)]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None


def _read_header(path: Path) -> tuple[bytes, int]:
    """Raw JSON header and the number of tensor bytes after it."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size_bytes - 8):
                raise CheckpointError(f"{path}: not a safetensors file: header of {header_bytes} bytes")
            return file.read(header_bytes), size_bytes - 8 - header_bytes
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None


def _read_entries(path: Path) -> Iterator[tuple[str, TensorEntry]]:
    header, body_bytes = _read_header(path)
    try:
        document = json.loads(header)
        items = [(name, spec) for name, spec in document.items() if name != "__metadata__"]
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: malformed safetensors header: {error}") from None
    for name, spec in items:
        yield name, _entry(path, name, spec, 8 + len(header), body_bytes)


def _entry(path: Path, name: str, spec: Any, body_start: int, body_bytes: int) -> TensorEntry:
    try:
        dtype, shape = str(spec["dtype"]), tuple(int(size) for size in spec["shape"])
        begin, end = (int(offset) for offset in spec["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name}: malformed header entry: {error!r}") from None
    if not 0 <= begin <= end <= body_bytes:
        raise CheckpointError(f"{path}: tensor {name}: bytes {begin}..{end} of {body_bytes}: the file is truncated")
    if dtype in FLOAT_BYTES and end - begin != math.prod(shape) * FLOAT_BYTES[dtype]:
        raise CheckpointError(f"{path}: tensor {name}: {end - begin} bytes do not hold {list(shape)} of {dtype}")
    return TensorEntry(path=path, offset_bytes=body_start + begin, dtype=dtype, shape=shape)
