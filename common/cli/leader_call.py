"""Calls of the command line to the scheduler that leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from common.config_values import parse_addresses
from common.errors import ConfigError, Reason, WireError
from common.rpc.channel import open_channel
from common.rpc.status import wire_error
from sangam.v1 import scheduler_pb2_grpc

if TYPE_CHECKING:
    from sangam.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

T = TypeVar("T")

TIMEOUT_S = 5.0
"""Deadline of one call; also how long a new leader is waited for, where there are several schedulers."""
PAUSE_S = 0.1

_ASK_ANOTHER = (Reason.NOT_LEADER, Reason.PEER_LOST, Reason.SCHEDULER_UNAVAILABLE)


async def ask_leader(schedulers: str, ask: Callable[[SchedulerServiceAsyncStub], Awaitable[T]]) -> T:
    """What `ask` makes of a stub of the scheduler that leads among `schedulers` (host:port, of several with commas).

    Raises WireError: the leader's own, or that none of them leads; ConfigError when something else answers there.
    """
    addresses = parse_addresses(schedulers)
    give_up_s = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        for address in addresses:
            try:
                return await _ask(address, ask)
            except WireError as error:
                if error.reason not in _ASK_ANOTHER or len(addresses) == 1:
                    raise
        if asyncio.get_running_loop().time() > give_up_s:
            raise WireError(Reason.NOT_LEADER, f"none of the schedulers at {', '.join(addresses)} leads")
        await asyncio.sleep(PAUSE_S)


async def _ask(address: str, ask: Callable[[SchedulerServiceAsyncStub], Awaitable[T]]) -> T:
    async with open_channel(address) as channel:
        try:
            return await ask(scheduler_pb2_grpc.SchedulerServiceStub(channel))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                what = f"what answers at {address} is no scheduler; `sangam up` prints the scheduler's address"
                raise ConfigError(f"--address: {what}") from None
            known = wire_error(error)
            if known.reason is not Reason.PEER_LOST:
                raise known from None
            text = f"no scheduler answers at {address} (`sangam up` prints the right address)"
            raise WireError(known.reason, text) from None
