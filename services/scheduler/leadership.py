"""When this scheduler leads, and under which term.

A term is a number that grows with every change of leader. Workers know the highest they have met and serve no lower
one; a life of a worker serves one term only. So a leader that was paused or cut off, and does not know yet that it has
a successor, commands nobody: its workers have begun new lives. This, and no lease, keeps two leaders apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from common.clock import Clock
from common.config import SchedulerServiceConfig
from common.errors import ConfigError
from common.rpc.advertise import advertised_address

log = logging.getLogger(__name__)


class Leadership(Protocol):
    """One scheduler's part in the question of who leads. Its methods run on one event loop."""

    async def win(self) -> int:
        """Return the term once this scheduler leads."""
        ...

    async def lose(self, *, heard_s: Callable[[], float]) -> str:
        """Return, with the reason in words, as soon as it leads no more; `win` comes next.

        `heard_s()` is the moment at which a worker has last spoken to this scheduler since `win`, -inf when none has.
        """
        ...

    def holds(self) -> bool:
        """Whether it leads at this very moment, by its own clock alone."""
        ...

    @property
    def leader(self) -> str:
        """The scheduler that led when last looked, as it names itself; "" when not known."""
        ...

    def outranked(self, term: int) -> None:
        """Somebody has met that term: a lower one of ours is over, and the next will be higher."""
        ...

    async def resign(self) -> None:
        """Let another lead at once; best effort."""
        ...


class LoneLeadership:
    """The only scheduler there is: it always leads. Its terms follow the wall clock, so that a restart begins one."""

    def __init__(self) -> None:
        self._term = 0
        self._least_term = 1
        self._outranked = asyncio.Event()

    async def win(self) -> int:
        """See `Leadership`."""
        self._term = max(self._least_term, time.time_ns() // 1_000_000)
        self._least_term = self._term + 1
        self._outranked.clear()
        return self._term

    async def lose(self, *, heard_s: Callable[[], float]) -> str:
        """See `Leadership`."""
        await self._outranked.wait()
        return f"a worker has served a scheduler of term {self._least_term - 1}"

    def holds(self) -> bool:
        """See `Leadership`."""
        return not self._outranked.is_set()

    @property
    def leader(self) -> str:
        """See `Leadership`."""
        return ""

    def outranked(self, term: int) -> None:
        """See `Leadership`."""
        if term >= self._least_term:
            self._least_term = term + 1
            self._outranked.set()

    async def resign(self) -> None:
        """See `Leadership`."""


@asynccontextmanager
async def open_leadership(config: SchedulerServiceConfig, *, bound: str, clock: Clock) -> AsyncIterator[Leadership]:
    """The leadership that the settings ask for; `bound` is where this scheduler listens (host:port)."""
    if not config.leader_lease:
        yield LoneLeadership()
        return
    # Only a scheduler with a lease needs the redis package.
    from common.redis_address import RedisAddress
    from services.scheduler.leased_leadership import LeasedLeadership
    from services.scheduler.redis_lease import RedisLease

    address = RedisAddress.parse(config.leader_lease)
    name = await asyncio.to_thread(_name, config, bound, f"{address.host}:{address.port}")
    lease = RedisLease(address, name=name, ttl_s=config.leader_lease_s)
    try:
        yield LeasedLeadership(lease, clock=clock, ttl_s=config.leader_lease_s)
    finally:
        await lease.aclose()


def _name(config: SchedulerServiceConfig, bound: str, redis: str) -> str:
    """What others are told of this scheduler when it leads; a hint, so that no name server may keep it from leading."""
    try:
        return advertised_address(
            bound,
            advertise_host=config.advertise_host,
            listen_host=config.host,
            towards=[redis],
            option="--leader-lease",
        )
    except ConfigError as error:
        log.warning("%s; others are told %s", error, bound)
        return bound
