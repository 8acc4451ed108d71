"""How many KV pages a worker takes when nobody says so."""

from __future__ import annotations

from common.core.kv_layout import DTYPE_BYTES
from common.model_config import ModelConfig

CPU_POOL_BYTES = 512 * 1024 * 1024
"""Size of an automatic pool on a CPU."""

CUDA_POOL_SHARE = 0.8
"""Share of the device's memory left over by the weights that an automatic pool takes; activations need the rest."""


def auto_pages(*, model: ModelConfig, dtype: str, page_size_tokens: int, max_batch_size: int, pool_bytes: int) -> int:
    """Pages that fit `pool_bytes`, at most what a full batch of longest canvases can use, at least one."""
    page_bytes = 2 * model.n_layers * page_size_tokens * model.n_kv_heads * model.head_dim * DTYPE_BYTES[dtype]
    useful = max_batch_size * -(-model.max_canvas_tokens // page_size_tokens)
    return max(1, min(pool_bytes // page_bytes, useful))


def pool_bytes(*, weights_bytes: int, free_bytes: int | None) -> int:
    """Bytes for an automatic pool: fixed on a CPU (`free_bytes` None), a share of what the weights leave on a GPU."""
    if free_bytes is None:
        return CPU_POOL_BYTES
    return int(CUDA_POOL_SHARE * max(0, free_bytes - weights_bytes))
