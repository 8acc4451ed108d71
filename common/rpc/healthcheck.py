"""`python -m common.rpc.healthcheck [ADDRESS] [--service NAME]`: exit code 0 when it serves, 1 when it does not.

Without an address it asks the server that wrote this machine's (or container's) ready file: `--ready-file`, else
`$SANGAM_READY_FILE`. That is what a container's health check runs, whatever port its service took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.channel import open_channel

DEFAULT_TIMEOUT_S = 2.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


async def is_serving(address: str, *, service: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
    """Whether the server at `address` (or one of its services, by full name) answers SERVING in time."""
    async with open_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def address_in(ready_file: Path) -> str | None:
    """host:port to reach the server that wrote `ready_file` from beside it; None while there is no such file.

    Raises ValueError when the file is not one that a service wrote.
    """
    try:
        found = json.loads(ready_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("address"), str):
        raise ValueError(f"{ready_file} holds no address")
    host, _, port = found["address"].rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check that `argv` describes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m common.rpc.healthcheck", description=__doc__)
    parser.add_argument("address", nargs="?", help="host:port of the server (default: the ready file's)")
    parser.add_argument(
        "--ready-file",
        type=Path,
        default=os.environ.get("SANGAM_READY_FILE") or None,
        help="file that the service wrote when it began to serve (default: $SANGAM_READY_FILE)",
    )
    parser.add_argument("--service", default="", help="full name of one service (default: the whole server)")
    parser.add_argument("--timeout-s", type=float, default=DEFAULT_TIMEOUT_S, help="longest wait in seconds")
    arguments = parser.parse_args(argv)
    address, ready_file = arguments.address, arguments.ready_file
    if address is None:
        if ready_file is None:
            parser.error("an address or --ready-file is required")
        try:
            address = address_in(ready_file)
        except ValueError as error:
            parser.error(str(error))
    serving = address is not None and asyncio.run(
        is_serving(address, service=arguments.service, timeout_s=arguments.timeout_s)
    )
    print(f"{address or f'no {ready_file} yet'}: {'SERVING' if serving else 'NOT SERVING'}")
    return 0 if serving else 1


if __name__ == "__main__":
    sys.exit(main())
