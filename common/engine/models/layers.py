"""The pieces of a layer: fused weights, RMSNorm, rotary embedding, gated MLP activation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from common.engine.invariance import map_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`weight` [out, in] and optional `bias` [out]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. `qkv` stacks the rows of q, k, v; `gate_up` those of gate, up. Norms are [hidden]."""

    attention_norm: Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """A whole model; `head.weight` is [usable vocabulary, hidden] (with tied embeddings a view of `embedding`)."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm computed in float32, scaled in the rows' dtype (both families' own order of roundings)."""
    wide = rows.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return weight * (wide * scale).to(rows.dtype)


def gated_silu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for `gate_up` [rows, 2 * mlp], gate first: [rows, mlp]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return map_elements(functional.silu, gate) * up


class RotaryTable:
    """Half-split ("neox") rotary embedding for canvas positions 0 … max_tokens-1.

    The table is float32, its angles rounded as the reference models round them. `full_precision` rotates in float32;
    otherwise in the dtype of the rows.
    """

    def __init__(
        self, *, head_dim: int, theta: float, max_tokens: int, full_precision: bool, device: torch.device
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        inverse_frequencies = (theta**-exponents).float()
        angles = (torch.arange(max_tokens, dtype=torch.float32)[:, None] * inverse_frequencies).double()
        # float64 and back: a float32 cosine's last bit would depend on how threads share the table.
        self._cos = angles.cos().float().to(device)
        self._sin = angles.sin().float().to(device)
        self._full_precision = full_precision

    def rows(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines for `positions` [rows]: two [rows, 1, head_dim / 2] in the dtype to rotate in."""
        wide = torch.float32 if self._full_precision else dtype
        return self._cos[positions].unsqueeze(1).to(wide), self._sin[positions].unsqueeze(1).to(wide)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `heads` [rows, n, head_dim] by the table rows; same dtype out."""
    first, second = heads.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
