"""What a cluster on this machine consists of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.config_values import AUTO, TokensOrAuto
from common.core.defaults import DEFAULT_DRAIN_S, DEFAULT_OVERLOAD_THRESHOLD_TOKENS, DEFAULT_TOKEN_BUDGET_TOKENS
from common.core.ids import ServingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What to start. `grpc_port` 0 means any free port; `kv_pages` 0 lets each worker size its own pool.

    `device` may name several, separated by commas: they are dealt out to the workers in turn. `torch_threads` 0 shares
    all cores but one among the workers. `story_dir` gets the stories of the cores, for `sangam replay` (None: none).
    `registry` is where the registry keeps its entries, and several schedulers their leader's lease: memory, a
    redis://host:port/db, or "" for a redis-server of the cluster's own. Work in flight has `drain_s` seconds to end
    when a service is told to stop. `worker_options`, `scheduler_options` and
    `gateway_options` are further flags for every such service, `options_of` for single services by name ("decode-1");
    these win over all others.
    """

    model_dir: Path
    run_dir: Path
    mode: ServingMode
    prefill_workers: int
    decode_workers: int
    schedulers: int = 1
    registry: str = "memory"
    host: str = "127.0.0.1"
    grpc_port: int = 0
    token_budget_tokens: TokensOrAuto = DEFAULT_TOKEN_BUDGET_TOKENS
    overload_threshold_tokens: TokensOrAuto = DEFAULT_OVERLOAD_THRESHOLD_TOKENS
    device: str = "cpu"
    dtype: str = "auto"
    kv_pages: int = 0
    torch_threads: int = 0
    kv_transport: str = AUTO
    drain_s: float = DEFAULT_DRAIN_S
    log_level: str = "info"
    story_dir: Path | None = None
    worker_options: tuple[str, ...] = field(default=())
    scheduler_options: tuple[str, ...] = field(default=())
    gateway_options: tuple[str, ...] = field(default=())
    options_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Every cluster has a decode worker; only hybrid leaves the number of prefill workers open."""
        assert self.decode_workers >= 1 and self.schedulers >= 1
        assert self.schedulers == 1 or self.registry != "memory", "a lease in one process' memory binds no other"
        assert self.prefill_workers == 0 or self.mode is not ServingMode.COLOCATED
        assert self.prefill_workers >= 1 or self.mode is not ServingMode.DISAGGREGATED

    @property
    def workers(self) -> int:
        """Worker processes in all."""
        return self.prefill_workers + self.decode_workers

    @property
    def devices(self) -> tuple[str, ...]:
        """The torch devices that workers get in turn."""
        return tuple(self.device.split(","))

    @property
    def threads_per_worker(self) -> int:
        """torch threads of each worker.

        One core is left to the event loops: torch's threads spin while they wait for each other, and a service that
        gets no core then adds more than a thread saves (2 cores, one worker, 128 tokens: +33 ms became +52 ms).
        """
        return self.torch_threads or max(1, ((os.cpu_count() or 1) - 1) // self.workers)
