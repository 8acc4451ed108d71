"""A worker in a process of its own, which can be stopped: `python -m tests.scheduler_service.frozen_worker ADDRESS`."""

from __future__ import annotations

import asyncio
import sys

from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.core.ids import Role
from common.rpc.channel import open_channel
from common.rpc.leader_watch import SERVICE
from tests.scheduler_service.scripted import ScriptedWorker, until


async def _main(scheduler_address: str) -> None:
    """Join as decode worker "frozen" and watch the scheduler's health, as real workers do."""
    worker = ScriptedWorker("frozen", Role.DECODE)
    await worker.join(scheduler_address)
    await until(lambda: worker.orders)  # the scheduler has taken up the stream: it answers the first heartbeat
    async with open_channel(scheduler_address) as channel:
        async for _ in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE)):
            print("watches", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
