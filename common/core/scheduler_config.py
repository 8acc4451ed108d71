"""Settings of the `SchedulerCore`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.core import defaults
from common.core.ids import ServingMode
from common.core.options import Dispatch, QueueOrder
from common.core.work import RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How blocks are ordered, placed, and how often they are tried.

    `overload_threshold_tokens` is θ of Algorithm 2 (hybrid mode only), or where it starts when it adapts. Policies are
    names from `common.core.placement`; `topology_alpha` and `length_slack` tune two of them. `sticky_workers` lets a
    colocated request's next block go to the worker of its last one while that has room. `max_gen_len_tokens` fixes the
    generated part of every canvas (0: as long as the request asks). `tenant_weights` are whole shares (others: 1).
    With `kv_overlap` a block gets its decode worker when its prefill runs, and each layer's K/V moves once computed,
    while at least `min_kept_share` of recent prefills of the same strategy left K/V.
    """

    mode: ServingMode
    overload_threshold_tokens: int = defaults.DEFAULT_OVERLOAD_THRESHOLD_TOKENS
    overload_threshold_adapts: bool = False
    overflow_enabled: bool = True
    max_attempts: int = defaults.DEFAULT_MAX_ATTEMPTS
    max_queued_requests: int = defaults.DEFAULT_MAX_QUEUED_REQUESTS
    no_pages_backoff_s: float = defaults.DEFAULT_NO_PAGES_BACKOFF_S
    peer_backoff_s: float = defaults.DEFAULT_PEER_BACKOFF_S
    prefill_policy: str = defaults.DEFAULT_PREFILL_POLICY
    decode_policy: str = defaults.DEFAULT_DECODE_POLICY
    colocated_policy: str = defaults.DEFAULT_COLOCATED_POLICY
    topology_alpha: float = defaults.DEFAULT_TOPOLOGY_ALPHA
    length_slack: float = defaults.DEFAULT_LENGTH_SLACK
    kv_overlap: bool = defaults.DEFAULT_KV_OVERLAP
    min_kept_share: float = defaults.MIN_KEPT_SHARE
    sticky_workers: bool = False
    queue_order: QueueOrder = defaults.DEFAULT_QUEUE_ORDER
    dispatch: Dispatch = defaults.DEFAULT_DISPATCH
    dispatch_ahead: int = defaults.DEFAULT_DISPATCH_AHEAD_ITERATIONS
    max_gen_len_tokens: int = 0
    tenant_quantum_tokens: int = defaults.DEFAULT_TENANT_QUANTUM_TOKENS
    tenant_weights: Mapping[str, int] = field(default_factory=dict)
    max_queue_wait_s: float = defaults.DEFAULT_MAX_QUEUE_WAIT_S

    def max_waiting(self, spec: RequestSpec) -> int:
        """How much may wait of what counts against room for `spec`."""
        return defaults.MAX_WAITING_IDLE_BLOCKS if spec.idle else self.max_queued_requests

    @property
    def overflows(self) -> bool:
        """Whether prefills may go to decode workers when every prefill worker is overloaded."""
        return self.mode is ServingMode.HYBRID and self.overflow_enabled
