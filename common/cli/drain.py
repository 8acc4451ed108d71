"""Give a worker no new work, let it finish what it has, and end it."""

from __future__ import annotations

import argparse
import asyncio

import grpc.aio

from common.cli.run_dir import find_scheduler
from common.cli.status import TIMEOUT_S, add_address_argument, scheduler_error
from common.rpc.channel import open_channel
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam drain`."""
    parser.add_argument("worker", metavar="WORKER", help="worker id, as `sangam status` shows it")
    add_address_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0. Raises NoCluster, or WireError (WORKER_NOT_FOUND names the workers there are)."""
    asyncio.run(drain_worker(find_scheduler(args.address), args.worker))
    print(f"{args.worker} is draining: it gets no new work and ends when its blocks are done")
    return 0


async def drain_worker(address: str, worker_id: str) -> None:
    """Ask the scheduler at `address` to drain a worker. Raises WireError."""
    async with open_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        try:
            await stub.DrainWorker(scheduler_pb2.DrainWorkerRequest(worker_id=worker_id), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise scheduler_error(error, address) from None
