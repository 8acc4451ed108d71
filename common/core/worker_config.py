"""What a `WorkerCore` is told at birth."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.defaults import DEFAULT_TARGET_DECODE_GAP_S
from common.core.ids import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCoreConfig:
    """Limits of one worker. `eos_token_id` None: the model has no end of text.

    `token_budget_tokens` and `max_batch_size` (decodes per iteration) bind the decode role,
    `max_prefill_tokens_per_batch` and `kv_lease_s` the prefill role. `kv_page_wait_s`: how long a decode may wait for
    pages before it is sent elsewhere (NO_KV_PAGES). With `token_budget_adapts` the budget is only where it starts (see
    `BudgetTuner`), and `target_decode_gap_s` bounds what it aims at (0: no target).
    """

    role: Role
    pages_total: int
    page_size_tokens: int
    token_budget_tokens: int
    max_prefill_tokens_per_batch: int
    max_batch_size: int
    kv_lease_s: float
    kv_page_wait_s: float
    eos_token_id: int | None
    token_budget_adapts: bool = False
    target_decode_gap_s: float = DEFAULT_TARGET_DECODE_GAP_S
