"""Give a worker no new work, let it finish what it has, and end it."""

from __future__ import annotations

import argparse
import asyncio

from common.cli.leader_call import TIMEOUT_S, ask_leader
from common.cli.run_dir import find_scheduler
from common.cli.status import add_address_argument
from sangam.v1 import scheduler_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam drain`."""
    parser.add_argument("worker", metavar="WORKER", help="worker id, as `sangam status` shows it")
    add_address_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0. Raises NoCluster, or WireError (WORKER_NOT_FOUND names the workers there are)."""
    asyncio.run(drain_worker(find_scheduler(args.address), args.worker))
    print(f"{args.worker} is draining: it gets no new work and ends when its blocks are done")
    return 0


async def drain_worker(schedulers: str, worker_id: str) -> None:
    """Ask the one that leads among `schedulers` (host:port, or several with commas). Raises WireError."""
    request = scheduler_pb2.DrainWorkerRequest(worker_id=worker_id)
    await ask_leader(schedulers, lambda stub: stub.DrainWorker(request, timeout=TIMEOUT_S))
