"""How K/V lies in pages: two workers may exchange pages only when their layouts' fingerprints are equal."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache

LAYOUT_VERSION = 1
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def default_dtype(device: str) -> str:
    """What a model is computed in on that torch device ("cpu", "cuda:1") when nothing is said."""
    return "float32" if device.partition(":")[0] == "cpu" else "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Facts that decide the bytes of a page and their meaning.

    A page of one layer is K then V, each [page_size_tokens, n_kv_heads, head_dim] of `dtype`, little-endian. On the
    wire a transfer runs over layers, then K before V, then pages in canvas order. `weights_fingerprint` is part of it:
    another checkpoint's K/V has the same shape and a different meaning.
    """

    model_id: str
    weights_fingerprint: str
    dtype: str
    page_size_tokens: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    version: int = LAYOUT_VERSION

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 over every field."""
        return _fingerprint(self)

    @property
    def model_fingerprint(self) -> str:
        """Hex SHA-256 over what decides a model's answers, however its K/V is paged."""
        facts = {"weights_fingerprint": self.weights_fingerprint, "dtype": self.dtype}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def page_bytes_per_layer(self) -> int:
        """Bytes of one page in one layer, K and V together."""
        return 2 * self.page_size_tokens * self.n_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    def block_bytes(self, pages: int) -> int:
        """Bytes of `pages` pages over all layers: what one block's transfer moves."""
        return pages * self.n_layers * self.page_bytes_per_layer


@lru_cache(maxsize=16)
def _fingerprint(layout: KvLayout) -> str:
    """Asked for at every block, and few layouts live in one process."""
    return hashlib.sha256(json.dumps(asdict(layout), sort_keys=True).encode()).hexdigest()
