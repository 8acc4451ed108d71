"""Workers as the scheduler sees them: what they registered, and what the ledger says they owe."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.ids import Role, WorkerLife


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker declared when it registered.

    `address` is where peers reach its gRPC server; `kv_address` where its KV data plane listens ("" if it has none).
    `max_canvas_tokens` is the model's own maximum; the pool's is pages_total * page_size_tokens.
    """

    life: WorkerLife
    role: Role
    address: str
    kv_transport: str
    kv_address: str
    layout_fingerprint: str
    model_id: str
    pages_total: int
    page_size_tokens: int
    max_canvas_tokens: int
    token_budget_tokens: int
    max_batch_size: int

    @property
    def pool_tokens(self) -> int:
        """Longest canvas this worker's pool can hold."""
        return self.pages_total * self.page_size_tokens

    def pages_for(self, canvas_tokens: int) -> int:
        """Pages that a canvas needs on this worker."""
        return -(-canvas_tokens // self.page_size_tokens)
