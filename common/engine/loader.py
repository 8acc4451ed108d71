"""Checkpoint tensors into fused device buffers, one tensor at a time: the originals never pile up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.checkpoint import CheckpointIndex, LayerNames
from common.checkpoint_values import not_finite
from common.engine.models.layers import LayerWeights, Linear, ModelWeights
from common.errors import CheckpointError


def load_weights(index: CheckpointIndex, *, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Read every tensor of a checked checkpoint, cast to `dtype`, on `device`.

    Raises `CheckpointError` naming file and tensor when one is not finite, in the file or as `dtype`, or when a file
    has become unreadable since it was checked.
    """
    with ExitStack() as files:
        return _Loader(index, files, device, dtype).model()


class _Loader:
    def __init__(self, index: CheckpointIndex, files: ExitStack, device: torch.device, dtype: torch.dtype) -> None:
        self._index = index
        self._files = files
        self._device = device
        self._dtype = dtype
        self._open: dict[Path, Any] = {}

    def model(self) -> ModelWeights:
        config, names = self._index.config, self._index.names
        embedding = self._stacked([f"{names.embedding}.weight"])
        if config.tied_embeddings:
            head = Linear(weight=embedding[: config.vocab_size_tokens], bias=None)
        else:
            whole = self._linear([names.head])
            bias = None if whole.bias is None else whole.bias[: config.vocab_size_tokens]
            head = Linear(weight=whole.weight[: config.vocab_size_tokens], bias=bias)
        return ModelWeights(
            embedding=embedding,
            layers=tuple(self._layer(layer) for layer in names.layers),
            final_norm=self._stacked([f"{names.final_norm}.weight"]),
            head=head,
        )

    def _layer(self, names: LayerNames) -> LayerWeights:
        return LayerWeights(
            attention_norm=self._stacked([f"{names.attention_norm}.weight"]),
            qkv=self._linear([names.q, names.k, names.v]),
            attention_out=self._linear([names.attention_out]),
            mlp_norm=self._stacked([f"{names.mlp_norm}.weight"]),
            gate_up=self._linear([names.gate, names.up]),
            down=self._linear([names.down]),
        )

    def _linear(self, names: Sequence[str]) -> Linear:
        biases = [f"{name}.bias" for name in names]
        has_bias = biases[0] in self._index.tensors
        return Linear(
            weight=self._stacked([f"{name}.weight" for name in names]),
            bias=self._stacked(biases) if has_bias else None,
        )

    def _stacked(self, names: Sequence[str]) -> Tensor:
        """The tensors' rows one below the other, each read straight into its part of one buffer."""
        shapes = [self._index.tensors[name].shape for name in names]
        rows = sum(shape[0] for shape in shapes)
        buffer = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        first = 0
        for name, shape in zip(names, shapes, strict=True):
            rows_of_it = buffer[first : first + shape[0]]
            stored = self._read(name)
            rows_of_it.copy_(stored)
            if not _is_finite(rows_of_it):
                raise self._fault(name, stored)
            first += shape[0]
        return buffer

    def _fault(self, name: str, stored: Tensor) -> CheckpointError:
        entry = self._index.tensors[name]
        if not _is_finite(stored):
            return not_finite(entry, name)
        return CheckpointError(f"{entry.path}: tensor {name} holds numbers that {self._dtype} cannot hold")

    def _read(self, name: str) -> Tensor:
        path = self._index.tensors[name].path
        try:
            if path not in self._open:
                self._open[path] = self._files.enter_context(safe_open(path, framework="pt"))
            tensor: Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name}: {error}") from None
        return tensor


def _is_finite(tensor: Tensor) -> bool:
    """Whether every number is: one pass (15 ms for a GB of float32 on two cores, of 320 that loading it takes)."""
    # The least and the largest number are NaN where any is.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())
