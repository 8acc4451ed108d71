"""Bidirectional attention of packed queries over paged K/V, behind an interface that other kernels can implement."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from common.engine.batch import PackedBatch
from common.engine.kv_pool import KvPool


class AttentionBackend(Protocol):
    """Computes attention for one layer of a packed batch."""

    def attend(self, query: Tensor, *, layer: int, batch: PackedBatch, pool: KvPool) -> Tensor:
        """Attend every segment's queries to all its canvas' K/V, which is in the pool already; no mask.

        `query` is [padded rows, n_heads, head_dim]; so is the result, finite in padding rows. A segment's result may
        depend on nothing but its own queries and slots: not on the batch, nor on other slots of its pages.
        """
        ...


class SdpaBackend:
    """torch's scaled_dot_product_attention, request by request at its exact K/V length (never against padded keys)."""

    def attend(self, query: Tensor, *, layer: int, batch: PackedBatch, pool: KvPool) -> Tensor:
        """See `AttentionBackend.attend`. Grouped K/V heads are shared by the kernel, not repeated in memory."""
        out = torch.zeros_like(query)
        for segment in batch.segments:
            keys, values = pool.gather(layer, segment.kv_slots)
            # A fresh copy: a slice's alignment depends on the batch, and kernels may sum in another order for it.
            own = query[segment.first_row : segment.end_row].clone()
            attended = functional.scaled_dot_product_attention(
                own.transpose(0, 1).unsqueeze(0),
                keys.transpose(0, 1).unsqueeze(0),
                values.transpose(0, 1).unsqueeze(0),
                enable_gqa=own.shape[1] != keys.shape[1],
            )
            out[segment.first_row : segment.end_row] = attended.squeeze(0).transpose(0, 1)
        return out
