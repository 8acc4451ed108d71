"""Puts the scheduler together and serves it until told to stop."""

from __future__ import annotations

import asyncio

from common.clock import MonotonicClock
from common.config import SchedulerServiceConfig
from common.config_values import AUTO, parse_tenant_weights, tokens_or
from common.core.defaults import DEFAULT_OVERLOAD_THRESHOLD_TOKENS
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.errors import Reason, WireError
from common.rpc.server import RpcServer
from common.rpc.service import write_ready_file
from common.story.cores import SCHEDULER
from common.story.writer import open_story
from sangam.v1 import scheduler_pb2_grpc
from services.scheduler.fencing import RegistryFencer
from services.scheduler.liveness import Liveness
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.shell import SchedulerShell
from services.scheduler.worker_calls import WorkerCalls

SERVICE_NAME = "sangam.v1.SchedulerService"
STOP_GRACE_S = 2.0


async def serve(config: SchedulerServiceConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then break every stream with SCHEDULER_UNAVAILABLE, so that gateways resume.

    Raises what a bug in the core raised. Raises ConfigError when the port cannot be had.
    """
    clock = MonotonicClock()
    liveness = Liveness(timeout_s=config.heartbeat_timeout_s)
    settings = core_config(config)
    story = open_story(config.story_dir, core=SCHEDULER, service="scheduler", config=settings)
    shell = SchedulerShell(
        core=SchedulerCore(settings),
        story=story,
        clock=clock,
        liveness=liveness,
        calls=WorkerCalls(),
        fencer=RegistryFencer(config.kv_store_address),
    )
    server = RpcServer(service_names=[SERVICE_NAME])
    servicer = SchedulerServicer(shell=shell, liveness=liveness, clock=clock, mode=config.mode)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.grpc)
    address = await server.start(config.host, config.port)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(shell.run())
            await server.set_serving(True)
            write_ready_file(config.ready_file, service="scheduler", address=address)
            stopping = tasks.create_task(stop.wait())
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            await server.set_serving(False)
            shell.stop(WireError(Reason.SCHEDULER_UNAVAILABLE, "the scheduler is stopping"))
    finally:
        await server.stop(STOP_GRACE_S)
        story.close()


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
