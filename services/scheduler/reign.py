"""One time of leading: a core that knows nothing yet, and all that is around it."""

from __future__ import annotations

from common.clock import Clock
from common.config import SchedulerServiceConfig
from common.config_values import AUTO, parse_tenant_weights, tokens_or
from common.core.defaults import DEFAULT_OVERLOAD_THRESHOLD_TOKENS
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.errors import WireError
from common.story.cores import SCHEDULER
from common.story.writer import open_story
from services.scheduler.fencing import RegistryFencer
from services.scheduler.liveness import Liveness
from services.scheduler.shell import SchedulerShell
from services.scheduler.worker_calls import WorkerCalls


class Reign:
    """A scheduler's shell and its workers' lives, under one term. Used once, on the loop that awaits `run`.

    Raises ConfigError when the story of its core cannot be written.
    """

    def __init__(self, config: SchedulerServiceConfig, *, clock: Clock, term: int) -> None:
        self.term = term
        self.liveness = Liveness(timeout_s=config.heartbeat_timeout_s)
        settings = core_config(config)
        self._story = open_story(config.story_dir, core=SCHEDULER, service="scheduler", config=settings)
        self.shell = SchedulerShell(
            core=SchedulerCore(settings),
            story=self._story,
            clock=clock,
            liveness=self.liveness,
            calls=WorkerCalls(),
            fencer=RegistryFencer(config.kv_store_address),
        )

    async def run(self) -> None:
        """Work until `end`; raises what a bug in the core raised."""
        try:
            await self.shell.run()
        finally:
            self._story.close()

    def end(self, error: WireError) -> None:
        """Break every stream with `error`, so that gateways and workers turn to whoever leads next."""
        self.shell.stop(error)


def core_config(config: SchedulerServiceConfig) -> SchedulerConfig:
    """The core's part of the service's settings."""
    adapts = config.overload_threshold == AUTO
    return SchedulerConfig(
        mode=config.mode,
        overload_threshold_tokens=tokens_or(config.overload_threshold, DEFAULT_OVERLOAD_THRESHOLD_TOKENS),
        overload_threshold_adapts=adapts,
        overflow_enabled=config.overflow,
        prefill_policy=config.prefill_policy,
        decode_policy=config.decode_policy,
        colocated_policy=config.colocated_policy,
        topology_alpha=config.topology_alpha,
        length_slack=config.length_slack,
        kv_overlap=config.kv_overlap,
        sticky_workers=config.sticky_workers,
        queue_order=config.queue_order,
        dispatch=config.dispatch,
        dispatch_ahead=config.dispatch_ahead,
        max_gen_len_tokens=config.max_gen_len,
        tenant_quantum_tokens=config.tenant_quantum,
        tenant_weights=parse_tenant_weights(config.tenant_weights),
        max_queue_wait_s=config.max_queue_wait_s,
        max_attempts=config.max_attempts,
        max_queued_requests=config.max_queued_requests,
    )
