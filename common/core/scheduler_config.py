"""Settings of the `SchedulerCore`."""

from __future__ import annotations

from dataclasses import dataclass

from common.core import defaults
from common.core.ids import ServingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How blocks are placed and how often they are tried.

    `overload_threshold_tokens` is θ of Algorithm 2, used in hybrid mode only. Policies are names from
    `common.core.placement`.
    """

    mode: ServingMode
    overload_threshold_tokens: int = defaults.DEFAULT_OVERLOAD_THRESHOLD_TOKENS
    overflow_enabled: bool = True
    max_attempts: int = defaults.DEFAULT_MAX_ATTEMPTS
    max_queued_requests: int = defaults.DEFAULT_MAX_QUEUED_REQUESTS
    no_pages_backoff_s: float = defaults.DEFAULT_NO_PAGES_BACKOFF_S
    peer_backoff_s: float = defaults.DEFAULT_PEER_BACKOFF_S
    prefill_policy: str = "least_outstanding_tokens"
    decode_policy: str = "max_free_pages"
    colocated_policy: str = "least_outstanding_tokens"

    @property
    def overflows(self) -> bool:
        """Whether prefills may go to decode workers when every prefill worker is overloaded."""
        return self.mode is ServingMode.HYBRID and self.overflow_enabled
