"""The forward pass over a packed batch. LLaDA and Dream differ only in names, biases, rotary precision and lookback."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from common.engine.attention import AttentionBackend
from common.engine.batch import PackedBatch
from common.engine.invariance import RowPlan
from common.engine.kv_pool import KvPool
from common.engine.models.layers import LayerWeights, Linear, ModelWeights, RotaryTable, gated_silu, rms_norm, rotate
from common.model_config import ModelConfig


class Transformer:
    """Weights plus the kernels that run them; holds no request state."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        weights: ModelWeights,
        rotary: RotaryTable,
        backend: AttentionBackend,
        row_plan: RowPlan,
    ) -> None:
        self._config = config
        self._weights = weights
        self._rotary = rotary
        self._backend = backend
        self._row_plan = row_plan

    def forward(self, batch: PackedBatch, pool: KvPool, on_layer: Callable[[int], None] | None) -> Tensor:
        """Hidden rows [padded rows, hidden] after the last layer; K/V of every real row goes into the pool.

        `on_layer(i)` is called when layer i's K/V of the whole batch is in the pool (on CUDA: is queued on the
        current stream).
        """
        rows = functional.embedding(batch.token_ids, self._weights.embedding)
        rotation = self._rotary.rows(batch.positions, rows.dtype)
        for index, layer in enumerate(self._weights.layers):
            query = self._project(rows, layer, rotation, index, batch, pool)
            if on_layer is not None:
                on_layer(index)
            attended = self._backend.attend(query, layer=index, batch=batch, pool=pool)
            rows = rows + self._linear(attended.flatten(1), layer.attention_out)
            normed = rms_norm(rows, layer.mlp_norm, self._config.rms_norm_eps)
            rows = rows + self._linear(gated_silu(self._linear(normed, layer.gate_up)), layer.down)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """lm_head of `rows` [padded, hidden]: [padded, usable vocabulary], in the weights' dtype."""
        return self._linear(rms_norm(rows, self._weights.final_norm, self._config.rms_norm_eps), self._weights.head)

    def _project(
        self,
        rows: Tensor,
        layer: LayerWeights,
        rotation: tuple[Tensor, Tensor],
        index: int,
        batch: PackedBatch,
        pool: KvPool,
    ) -> Tensor:
        """Write rotated K and V of real rows to the pool; return rotated queries [padded rows, n_heads, head_dim]."""
        config = self._config
        fused = self._linear(rms_norm(rows, layer.attention_norm, config.rms_norm_eps), layer.qkv)
        heads = fused.view(rows.shape[0], config.n_heads + 2 * config.n_kv_heads, config.head_dim)
        rotated = config.n_heads + config.n_kv_heads
        query_and_key, value = rotate(heads[:, :rotated], *rotation), heads[:, rotated:]
        real = batch.real_rows
        pool.write(index, batch.slots, query_and_key[:real, config.n_heads :], value[:real])
        return query_and_key[:, : config.n_heads]

    def _linear(self, rows: Tensor, linear: Linear) -> Tensor:
        return self._row_plan.linear(rows, linear.weight, linear.bias)


def select_rows(rows: Tensor, batch: PackedBatch) -> Tensor:
    """The rows that are sampled, padded for a matrix product: [padded sampled, hidden]."""
    return torch.index_select(rows, 0, batch.sampled_rows)
