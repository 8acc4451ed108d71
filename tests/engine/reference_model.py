"""The two families' forward pass in float64, straight from the format notes: slow, unfused, uncached, unbatched."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

_LLADA = {
    "embedding": "model.transformer.wte",
    "norm": "model.transformer.ln_f",
    "head": "model.transformer.ff_out",
    "layer": "model.transformer.blocks.{}.",
    "parts": "attn_norm q_proj k_proj v_proj attn_out ff_norm ff_proj up_proj ff_out",
    "keys": "n_layers n_heads rms_norm_eps rope_theta",
}
_DREAM = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layer": "model.layers.{}.",
    "parts": "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
    "post_attention_layernorm mlp.gate_proj mlp.up_proj mlp.down_proj",
    "keys": "num_hidden_layers num_attention_heads rms_norm_eps rope_theta",
}


def reference_logits(model_dir: Path, token_ids: list[int]) -> Tensor:
    """Raw logits over all embedding rows, float64 [canvas, rows]."""
    config = json.loads((model_dir / "config.json").read_text())
    names = _DREAM if config["model_type"] == "Dream" else _LLADA
    tensors = {
        name: tensor.double() for path in model_dir.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    n_layers, n_heads, eps, theta = (config[key] for key in names["keys"].split())

    zero = torch.zeros(1).double()

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", zero)

    def norm(x: Tensor, name: str) -> Tensor:
        scale = tensors[f"{name}.weight"] / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return torch.mul(x, scale)

    def rope(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[0]).double()[:, None] * theta ** (-torch.arange(half).double() / half)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    x = tensors[f"{names['embedding']}.weight"][token_ids]
    for layer in range(n_layers):
        prefix = names["layer"].format(layer)
        in_norm, q, k, v, out, mlp_norm, gate, up, down = (prefix + part for part in names["parts"].split())
        y = norm(x, in_norm)
        head_dim = x.shape[1] // n_heads
        query, key, value = (linear(y, name).view(len(token_ids), -1, head_dim) for name in (q, k, v))
        repeats = n_heads // key.shape[1]
        key, value = rope(key).repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        weights = torch.softmax(torch.einsum("qhd,khd->hqk", rope(query), key) / head_dim**0.5, -1)
        x = x + linear(torch.einsum("hqk,khd->qhd", weights, value).flatten(1), out)
        y = norm(x, mlp_norm)
        g = linear(y, gate)
        x = x + linear(g / (1 + torch.exp(-g)) * linear(y, up), down)
    head = names["embedding"] if f"{names['head']}.weight" not in tensors else names["head"]
    return linear(norm(x, names["norm"]), head)
