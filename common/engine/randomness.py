"""Counter-based randomness: a number is a function of (seed, block, step, position, vocabulary index) and nothing else.

SplitMix64 (Steele, Lea, Flood 2014) over 64-bit counters, the same in Python integers and in int64 tensors, where
products wrap alike on CPU and CUDA. No generator state: neither torch's version nor the batch can change a draw.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.engine.invariance import map_elements

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIFORM_BITS = 52


def mix64(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers."""
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def draw(seed: int, *counters: int) -> int:
    """64 random bits for a seed and a path of counters; the order of counters matters."""
    state = mix64((seed + _GAMMA) & _MASK)
    for counter in counters:
        state = mix64((state + (counter + 1) * _GAMMA) & _MASK)
    return state


def gumbel(keys: Tensor, vocab_size_tokens: int) -> Tensor:
    """Gumbel noise −ln(−ln u) in float64 for each key (int64 [rows]) and vocabulary index: [rows, vocab]."""
    return map_elements(_gumbel_of_uniform, uniform(keys, vocab_size_tokens))


def uniform(keys: Tensor, vocab_size_tokens: int) -> Tensor:
    """Uniform float64 in (0, 1), never 0 or 1: `draw`'s next counter for each vocabulary index, its upper 52 bits."""
    counters = torch.arange(1, vocab_size_tokens + 1, dtype=torch.int64, device=keys.device)
    bits = _mix64_tensor(keys[:, None] + counters * as_int64(_GAMMA))
    upper = _shift_right(bits, 64 - _UNIFORM_BITS).double()
    return torch.mul(upper + 0.5, math.ldexp(1.0, -_UNIFORM_BITS))


def as_int64(value: int) -> int:
    """The signed integer with the same 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def _gumbel_of_uniform(values: Tensor) -> Tensor:
    return -torch.log(-torch.log(values))


def _mix64_tensor(values: Tensor) -> Tensor:
    values = (values ^ _shift_right(values, 30)) * as_int64(_MIX_1)
    values = (values ^ _shift_right(values, 27)) * as_int64(_MIX_2)
    return values ^ _shift_right(values, 31)


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own is arithmetic, so the copied sign bits are cleared."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
