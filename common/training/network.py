"""The network while it is trained: the same function as `common.engine` computes, over canvases of equal length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from common.training.recipe import NetworkShape

MAX_CANVAS_TOKENS = 4096
"""Positions that have rotary rows: what the checkpoint's config.json allows."""


class Layer(nn.Module):
    """Pre-norm attention over the whole canvas, then a gated MLP. `qkv` and `gate_up` are stacked as in the engine."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self._shape = shape
        hidden, mlp = shape.hidden_size, shape.mlp_size
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=True)
        self.attention_out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Linear(hidden, 2 * mlp, bias=False)
        self.down = nn.Linear(mlp, hidden, bias=False)

    def forward(self, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`rows` [batch, canvas, hidden]; `cos`, `sin` [canvas, head_dim / 2]; same shape out."""
        shape = self._shape
        batch, canvas, hidden = rows.shape
        normed = functional.rms_norm(rows, (hidden,), self.attention_norm, shape.rms_norm_eps)
        heads = self.qkv(normed).view(batch, canvas, 3 * shape.n_heads, shape.head_dim).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        attended = _attend(_rotate(query, cos, sin), _rotate(key, cos, sin), value)
        rows = rows + self.attention_out(attended.transpose(1, 2).reshape(batch, canvas, hidden))
        normed = functional.rms_norm(rows, (hidden,), self.mlp_norm, shape.rms_norm_eps)
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        mlp: Tensor = self.down(functional.silu(gate) * up)
        return rows + mlp


class Network(nn.Module):
    """Embedding, layers, final norm and lm_head, drawn from `seed`."""

    rotary: Tensor

    def __init__(self, shape: NetworkShape, *, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_rows, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.final_norm = nn.Parameter(torch.ones(shape.hidden_size))
        self.head = nn.Linear(shape.hidden_size, shape.vocab_rows, bias=False)
        self.register_buffer("rotary", torch.stack(rotary_rows(shape, MAX_CANVAS_TOKENS)), persistent=False)
        self._draw(torch.Generator().manual_seed(seed))

    def forward(self, token_ids: Tensor) -> Tensor:
        """Rows after the final norm: [batch, canvas] ids to [batch, canvas, hidden]."""
        cos, sin = self.rotary[:, : token_ids.shape[1]].unbind()
        rows = self.embedding(token_ids)
        for layer in self.layers:
            rows = layer(rows, cos, sin)
        return functional.rms_norm(rows, (self.shape.hidden_size,), self.final_norm, self.shape.rms_norm_eps)

    def each_layer(self) -> list[Layer]:
        """The layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @torch.no_grad()
    def _draw(self, generator: torch.Generator) -> None:
        """Matrices by their input's width, the last ones of each layer smaller; biases 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:
                std = 1.0 if name.startswith("embedding") else parameter.shape[1] ** -0.5
                if "attention_out" in name or "down" in name:
                    std /= (2 * self.shape.n_layers) ** 0.5
                parameter.normal_(0.0, std, generator=generator)


def rotary_rows(shape: NetworkShape, canvas_tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the half-split rotary embedding: two [canvas, head_dim / 2], as the engine's table."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    inverse_frequencies = (shape.rope_theta**-exponents).float()
    angles = (torch.arange(canvas_tokens, dtype=torch.float32)[:, None] * inverse_frequencies).double()
    return angles.cos().float(), angles.sin().float()


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Every position looks at every other. Plain products: on a CPU and for short canvases the backward pass of torch's
    fused attention takes longer than all the rest of a step."""
    scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
    return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(value.dtype), value)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
