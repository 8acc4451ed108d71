"""One scheduler of several: it leads while it holds the lease."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from common.clock import Clock
from common.racing import race
from services.scheduler.redis_lease import Held, LeaseUnreachable

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""A leader asks this often within its lease, so that a lost answer costs nothing."""

TRIES_PER_LEASE = 10
"""It asks this often after an answer that did not come."""

LONGEST_LOOK_PAUSE_S = 0.25
SHORTEST_LOOK_PAUSE_S = 0.02
"""Between two looks of a standby at the lease: until the lease may end, at most the longest."""

STEP_DOWN_SHARE = 0.9
"""A leader stops leading after this share of its lease, by its own clock: clocks differ, and stopping takes time."""


class Lease(Protocol):
    """What is agreed upon; the real one is `services.scheduler.redis_lease.RedisLease`. All raise LeaseUnreachable."""

    async def take(self, *, least_term: int) -> int | Held:
        """The term under which it is ours, or who holds it."""
        ...

    async def renew(self, term: int) -> bool:
        """Whether it is still ours, for its whole time from now."""
        ...

    async def give_up(self) -> None:
        """Leave it to others, if it is ours."""
        ...


class LeasedLeadership:
    """`Leadership` by a lease of `ttl_s` seconds.

    The lease is counted from the moment before it was asked for, by `clock`, and a leader whose own count is over leads
    no more whatever Redis would say: its successor's begins later.
    """

    def __init__(self, lease: Lease, *, clock: Clock, ttl_s: float) -> None:
        self._lease = lease
        self._clock = clock
        self._ttl_s = ttl_s
        self._term = 0
        self._least_term = 1
        self._ends_s = clock.now()
        self._outranked = asyncio.Event()
        self._leader = ""
        self._trouble = ""

    async def win(self) -> int:
        """See `Leadership`."""
        while True:
            asked_s = self._clock.now()
            pause_s = LONGEST_LOOK_PAUSE_S
            try:
                found = await self._lease.take(least_term=self._least_term)
            except LeaseUnreachable as error:
                self._note_trouble(str(error))
            else:
                self._note_trouble("")
                if not isinstance(found, Held):
                    self._begin(found, asked_s)
                    return found
                self._leader = found.holder
                pause_s = max(SHORTEST_LOOK_PAUSE_S, min(found.left_s, LONGEST_LOOK_PAUSE_S))
            await self._clock.sleep(pause_s)

    async def lose(self) -> str:
        """See `Leadership`."""
        why = await race(self._renew_until_refused(), self._until_outranked(), self._until_over())
        self._ends_s = self._clock.now()
        return why

    def holds(self) -> bool:
        """See `Leadership`."""
        return self._clock.now() < self._ends_s and not self._outranked.is_set()

    @property
    def leader(self) -> str:
        """See `Leadership`."""
        return self._leader

    def outranked(self, term: int) -> None:
        """See `Leadership`."""
        if term >= self._least_term:
            self._least_term = term + 1
            self._outranked.set()

    async def resign(self) -> None:
        """See `Leadership`."""
        try:
            await self._lease.give_up()
        except LeaseUnreachable as error:
            log.warning("the lease could not be given up (%s); it ends by itself", error)

    def _begin(self, term: int, asked_s: float) -> None:
        self._term = term
        self._least_term = max(self._least_term, term + 1)
        self._outranked.clear()
        self._count_from(asked_s)

    def _count_from(self, asked_s: float) -> None:
        self._ends_s = asked_s + self._ttl_s * STEP_DOWN_SHARE

    async def _renew_until_refused(self) -> str:
        pause_s = self._ttl_s / RENEWALS_PER_LEASE
        while True:
            await self._clock.sleep(pause_s)
            asked_s = self._clock.now()
            try:
                if not await self._lease.renew(self._term):
                    return "another scheduler has taken the lease"
            except LeaseUnreachable as error:
                self._note_trouble(str(error))
                pause_s = self._ttl_s / TRIES_PER_LEASE
            else:
                self._note_trouble("")
                self._count_from(asked_s)
                pause_s = self._ttl_s / RENEWALS_PER_LEASE

    async def _until_outranked(self) -> str:
        await self._outranked.wait()
        return f"a worker has met term {self._least_term - 1}, and ours is {self._term}"

    async def _until_over(self) -> str:
        while (left_s := self._ends_s - self._clock.now()) > 0:
            await self._clock.sleep(left_s)
        return f"the lease could not be renewed in time ({self._trouble or 'this process stood still'})"

    def _note_trouble(self, trouble: str) -> None:
        """Say once that the lease cannot be reached, and once that it can be again."""
        if trouble and not self._trouble:
            log.error("the leader's lease cannot be reached (%s); trying again until it can", trouble)
        elif self._trouble and not trouble:
            log.info("the leader's lease can be reached again")
        self._trouble = trouble
