"""Everything that defines one simulated run, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.core import defaults
from common.core.ids import Role, ServingMode
from common.core.params import DEFAULT_BLOCK_LENGTH_TOKENS, CacheMode
from common.core.scheduler_config import SchedulerConfig
from common.core.worker_config import WorkerCoreConfig
from common.sim.cost_model import StepCost
from common.sim.data_plane import KvLink
from common.sim.faults import FaultSettings
from common.sim.network import NetworkSettings


def default_worker_config(
    *, role: Role, pages_total: int, token_budget_tokens: int = defaults.DEFAULT_TOKEN_BUDGET_TOKENS
) -> WorkerCoreConfig:
    """A worker core with the project's defaults and no end of text: outputs have the workload's lengths."""
    return WorkerCoreConfig(
        role=role,
        pages_total=pages_total,
        page_size_tokens=defaults.DEFAULT_PAGE_SIZE_TOKENS,
        token_budget_tokens=token_budget_tokens,
        max_prefill_tokens_per_batch=defaults.DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH,
        max_batch_size=defaults.DEFAULT_MAX_BATCH_SIZE,
        kv_lease_s=defaults.DEFAULT_KV_LEASE_S,
        kv_page_wait_s=defaults.DEFAULT_KV_PAGE_WAIT_S,
        eos_token_id=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """One run. `worker` is the template of every worker: role and nothing else differs.

    `prefill_workers` and `decode_workers` are per cell. In colocated mode all of them decode.
    """

    scheduler: SchedulerConfig
    worker: WorkerCoreConfig
    prefill_workers: int
    decode_workers: int
    cost: StepCost
    tokens_per_step: float
    kv_link: KvLink
    max_canvas_tokens: int
    cells: int = 1
    block_length_tokens: int = DEFAULT_BLOCK_LENGTH_TOKENS
    cache_mode: CacheMode = CacheMode.DUAL
    network: NetworkSettings = field(default_factory=NetworkSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    heartbeat_timeout_s: float = defaults.DEFAULT_HEARTBEAT_TIMEOUT_S
    seed: int = 0

    @property
    def roles(self) -> tuple[Role, ...]:
        """The workers of one cell."""
        if self.scheduler.mode is ServingMode.COLOCATED:
            return (Role.DECODE,) * (self.prefill_workers + self.decode_workers)
        return (Role.PREFILL,) * self.prefill_workers + (Role.DECODE,) * self.decode_workers

    @property
    def canvas_limit_tokens(self) -> int:
        """Longest canvas that a worker can hold."""
        return min(self.max_canvas_tokens, self.worker.pages_total * self.worker.page_size_tokens)
