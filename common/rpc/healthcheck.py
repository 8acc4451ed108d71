"""`python -m common.rpc.healthcheck ADDRESS [--service NAME]`: exit code 0 when it serves, 1 when it does not."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.channel import open_channel

DEFAULT_TIMEOUT_S = 2.0


async def is_serving(address: str, *, service: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
    """Whether the server at `address` (or one of its services, by full name) answers SERVING in time."""
    async with open_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check that `argv` describes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m common.rpc.healthcheck", description=__doc__)
    parser.add_argument("address", help="host:port of the server")
    parser.add_argument("--service", default="", help="full name of one service (default: the whole server)")
    parser.add_argument("--timeout-s", type=float, default=DEFAULT_TIMEOUT_S, help="longest wait in seconds")
    arguments = parser.parse_args(argv)
    serving = asyncio.run(is_serving(arguments.address, service=arguments.service, timeout_s=arguments.timeout_s))
    print(f"{arguments.address}: {'SERVING' if serving else 'NOT SERVING'}")
    return 0 if serving else 1


if __name__ == "__main__":
    sys.exit(main())
