"""How long a forward takes: a roofline from a model's shape and a machine's rates, or a line fitted to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DecodeItem:
    """One decode step: `query_tokens` rows against `canvas_tokens` cached positions."""

    query_tokens: int
    canvas_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """One whole-canvas forward; logits for one block of `block_tokens`."""

    canvas_tokens: int
    block_tokens: int


class StepCost(Protocol):
    """Seconds of one packed forward."""

    def forward_s(self, decodes: Sequence[DecodeItem], prefills: Sequence[PrefillItem]) -> float:
        """Duration in seconds, > 0. Uses + - * / only, so that every machine agrees on the last bit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the roofline knows of a model. Parameter counts without the embedding table; bf16 is 2 bytes."""

    layers: int
    attention_width: int
    kv_width: int
    layer_parameters: int
    head_parameters: int
    bytes_per_number: int
    query_lookback_tokens: int

    @classmethod
    def of(
        cls, *, layers: int, width: int, heads: int, kv_heads: int, head_dim: int, mlp: int, vocab: int, lookback: int
    ) -> ModelShape:
        """A gated-MLP transformer of that shape, in bf16."""
        attention, kv = heads * head_dim, kv_heads * head_dim
        per_layer = width * (2 * attention + 2 * kv) + 3 * width * mlp
        return cls(
            layers=layers,
            attention_width=attention,
            kv_width=kv,
            layer_parameters=layers * per_layer,
            head_parameters=width * vocab,
            bytes_per_number=2,
            query_lookback_tokens=lookback,
        )

    @property
    def weights_bytes(self) -> int:
        """Bytes that every forward reads."""
        return (self.layer_parameters + self.head_parameters) * self.bytes_per_number

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one canvas position over all layers."""
        return 2 * self.layers * self.kv_width * self.bytes_per_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One GPU, by what it sustains (not by its data sheet).

    `launch_s` is spent once per forward, `item_s` once per request in it (its attention kernels, its sampling).
    """

    sustained_flops: float
    attention_flops: float
    memory_bytes_per_s: float
    launch_s: float
    item_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCost:
    """launch + items + max(linear FLOPs, weight bytes) + max(attention FLOPs, KV bytes), each over its rate."""

    shape: ModelShape
    machine: Machine

    def forward_s(self, decodes: Sequence[DecodeItem], prefills: Sequence[PrefillItem]) -> float:
        """See `StepCost.forward_s`."""
        shape, machine = self.shape, self.machine
        rows = logit_rows = attended = kv_tokens = 0
        for decode in decodes:
            queries = decode.query_tokens + shape.query_lookback_tokens
            rows += queries
            logit_rows += decode.query_tokens
            attended += queries * decode.canvas_tokens
            kv_tokens += decode.canvas_tokens
        for prefill in prefills:
            rows += prefill.canvas_tokens
            logit_rows += prefill.block_tokens
            attended += prefill.canvas_tokens * prefill.canvas_tokens
            kv_tokens += 2 * prefill.canvas_tokens
        linear_flops = 2.0 * (rows * shape.layer_parameters + logit_rows * shape.head_parameters)
        attention_flops = 4.0 * shape.layers * shape.attention_width * attended
        linear_s = max(linear_flops / machine.sustained_flops, shape.weights_bytes / machine.memory_bytes_per_s)
        kv_s = kv_tokens * shape.kv_bytes_per_token / machine.memory_bytes_per_s
        attention_s = max(attention_flops / machine.attention_flops, kv_s)
        return machine.launch_s + machine.item_s * (len(decodes) + len(prefills)) + linear_s + attention_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """launch + a price per prefill token + a price per decode query token; what `calibration` fits."""

    launch_s: float
    prefill_token_s: float
    decode_token_s: float

    def forward_s(self, decodes: Sequence[DecodeItem], prefills: Sequence[PrefillItem]) -> float:
        """See `StepCost.forward_s`."""
        prefill_tokens = sum(item.canvas_tokens for item in prefills)
        decode_tokens = sum(item.query_tokens for item in decodes)
        return self.launch_s + self.prefill_token_s * prefill_tokens + self.decode_token_s * decode_tokens
