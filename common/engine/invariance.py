"""What keeps one request's numbers the same, bit for bit, whatever it is batched with (algorithms, section 5).

A matrix product gives a row the same bits in any batch when the number of rows is a multiple of 4 on CPU; on CUDA the
kernel (and with it the order of the sums) depends on the shape, so every product there has one fixed number of rows.
exp and log differ in the last bit between a vectorised loop's body and its scalar tail, and a tail appears wherever a
tensor or a thread's share of it ends: they run over pieces too small for threads and free of tails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_CPU_ROW_MULTIPLE = 8
_CUDA_TILE_ROWS = 256
_PIECE_ELEMENTS = 16_384  # below torch's own threshold (32 768) for splitting a loop over threads
_VECTOR_ELEMENTS = 128  # a multiple of every unrolled vector loop: no scalar tail


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How packed rows meet a matrix product: padded to `multiple`, multiplied `tile_rows` at a time (None: all)."""

    multiple: int
    tile_rows: int | None

    @classmethod
    def for_device(cls, device: torch.device) -> RowPlan:
        """The plan that makes a row's result independent of the batch on this kind of device."""
        if device.type == "cpu":
            return cls(multiple=_CPU_ROW_MULTIPLE, tile_rows=None)
        return cls(multiple=_CUDA_TILE_ROWS, tile_rows=_CUDA_TILE_ROWS)

    def padded(self, rows: int) -> int:
        """The least number of rows, at least one multiple, that holds `rows`."""
        return max(1, -(-rows // self.multiple)) * self.multiple

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`rows` [padded, in] times `weight` [out, in] transposed, plus `bias` [out]: [padded, out]."""
        assert rows.shape[0] % self.multiple == 0, f"{rows.shape[0]} rows are not padded to {self.multiple}"
        if self.tile_rows is None or rows.shape[0] == self.tile_rows:
            return functional.linear(rows, weight, bias)
        starts = range(0, rows.shape[0], self.tile_rows)
        return torch.cat([functional.linear(rows[first : first + self.tile_rows], weight, bias) for first in starts])


def map_elements(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`function`, an elementwise one without a fixed last bit (exp, log, silu), over `values` of any shape.

    Each element's result depends on its value alone: not on its place, the tensor's size or the number of threads.
    """
    if values.device.type != "cpu":
        return function(values)
    flat = values.reshape(-1)
    padded = functional.pad(flat, (0, -flat.numel() % _VECTOR_ELEMENTS), value=1.0)
    starts = range(0, padded.numel(), _PIECE_ELEMENTS)
    result = torch.cat([function(padded[first : first + _PIECE_ELEMENTS]) for first in starts])
    return result[: flat.numel()].view(values.shape)
