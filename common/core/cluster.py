"""Workers as the scheduler sees them: what they registered, and what the ledger says they owe."""

from __future__ import annotations

from dataclasses import dataclass

from common.core import defaults
from common.core.ids import Role, ServingMode, WorkerLife
from common.core.work import IterationReport
from common.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker declared when it registered.

    `address` is where peers reach its gRPC server; `kv_address` where its KV data plane listens ("" if it has none).
    `max_canvas_tokens` is the model's own maximum; the pool's is pages_total * page_size_tokens. Workers with the same
    `fast_link_domain` exchange K/V over fast links ("": those on the same host). Workers with different
    `model_fingerprint`s give different answers ("": not compared).
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
    max_prefill_tokens_per_batch: int = defaults.DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH
    fast_link_domain: str = ""
    model_fingerprint: str = ""

    @property
    def link_domain(self) -> str:
        """Name of the set of workers that it has a fast link to."""
        return self.fast_link_domain or self.address.rpartition(":")[0]

    @property
    def pool_tokens(self) -> int:
        """Longest canvas this worker's pool can hold."""
        return self.pages_total * self.page_size_tokens

    @property
    def canvas_limit_tokens(self) -> int:
        """Longest canvas this worker can ever serve: pool and model both have a say."""
        return min(self.pool_tokens, self.max_canvas_tokens)

    def pages_for(self, canvas_tokens: int) -> int:
        """Pages that a canvas needs on this worker."""
        return -(-canvas_tokens // self.page_size_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker at one moment: its spec and the scheduler's own tally (reports are shown, never counted).

    `live_blocks` are the prefill and decode calls there, `length_sum_tokens` the sum of their canvases.
    """

    spec: WorkerSpec
    pages_free: int
    outstanding_prefill_tokens: int
    active_decodes: int
    draining: bool
    report: IterationReport | None
    live_blocks: int = 0
    length_sum_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster at one moment. `workers` is sorted by worker id; counts are of blocks and requests.

    `queued_blocks` includes `parked_blocks`: those whose canvas fits no live worker at present.
    `overload_threshold_tokens` is theta in force; `overload_threshold_adapts`: the scheduler sets it itself.
    `early_readers` counts Decode calls made during a prefill, `early_readers_unused` those of them that ended before it
    or with it. `replay_divergences` counts tokens that a repeated attempt revealed differently from what was already
    shown, `retried_blocks` further attempts at blocks by what ended the one before. `waiting_idle_blocks` are in no
    other count.
    """

    mode: ServingMode
    workers: tuple[WorkerView, ...]
    queued_blocks: int
    parked_blocks: int
    waiting_decode_blocks: int
    running_requests: int
    ended_requests: int
    overload_threshold_tokens: int
    replay_divergences: int
    overload_threshold_adapts: bool = False
    waiting_idle_blocks: int = 0
    early_readers: int = 0
    early_readers_unused: int = 0
    retried_blocks: tuple[tuple[Reason, int], ...] = ()
