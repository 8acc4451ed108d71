"""Puts the scheduler together and serves it until told to stop."""

from __future__ import annotations

import asyncio

from common.clock import MonotonicClock
from common.config import SchedulerServiceConfig
from common.rpc.leader_watch import SERVICE
from common.rpc.server import RpcServer
from common.rpc.service import write_ready_file
from sangam.v1 import scheduler_pb2_grpc
from services.scheduler.leadership import open_leadership
from services.scheduler.office import Office
from services.scheduler.reign import Reign
from services.scheduler.servicer import SchedulerServicer

STOP_GRACE_S = 2.0


async def serve(config: SchedulerServiceConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then break every stream with SCHEDULER_UNAVAILABLE, so that gateways resume.

    A standby is up and well: only its health for the service itself is NOT_SERVING until it leads. Raises what a bug in
    the core raised. Raises ConfigError when the port cannot be had.
    """
    clock = MonotonicClock()
    office = Office(begin=lambda term: Reign(config, clock=clock, term=term))
    server = RpcServer(service_names=[SERVICE])
    servicer = SchedulerServicer(office=office, clock=clock, mode=config.mode)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.grpc)
    address = await server.start(config.host, config.port)
    stands_by = bool(config.leader_lease)

    async def report(leading: bool) -> None:
        await server.set_serving(leading, whole=leading or (stands_by and not stop.is_set()))
        if leading or stands_by:
            write_ready_file(config.ready_file, service="scheduler", address=address)

    try:
        async with open_leadership(config, bound=address, clock=clock) as leadership:
            await report(False)
            await office.hold(leadership, stop=stop, report=report)
    finally:
        await server.stop(STOP_GRACE_S)
