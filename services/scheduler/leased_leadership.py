"""One scheduler of several: it leads while it holds the lease, or while nobody can and its workers stay with it.

The lease makes sure that somebody leads, and as a rule one alone. That two never command the same worker is not its
work but that of the terms, which workers enforce. So a leader whom Redis does not answer may go on: if another has come
to lead, this one's workers have turned to that one, and tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from common.clock import Clock
from common.racing import race
from services.scheduler.redis_lease import Held, LeaseUnreachable

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""A leader asks this often within its lease, so that a lost answer costs nothing."""

TRIES_PER_LEASE = 10
"""It asks this often after an answer that did not come."""

RESIGN_TRIES = 3
"""How often a leader that is told to stop tries to give its lease up: who follows would wait for its end."""

LONGEST_LOOK_PAUSE_S = 0.25
SHORTEST_LOOK_PAUSE_S = 0.02
"""Between two looks of a standby at the lease: until the lease may end, at most the longest."""

COUNTED_SHARE = 0.9
"""A leader counts on this share of its lease, by its own clock: clocks differ."""

ALONE_LIMIT_S = 30.0
"""How long a leader without Redis waits for a word from any worker: they may all be starting anew."""


class Lease(Protocol):
    """What is agreed upon; the real one is `services.scheduler.redis_lease.RedisLease`. All raise LeaseUnreachable."""

    async def look(self) -> Held | None:
        """Who holds it, None when nobody or we do."""
        ...

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

    The lease is counted from the moment before it was asked for, by `clock`. A leader whose own count is over, since it
    stood still, answers nobody before it has asked again. Where Redis does not answer it counts anew after each try,
    for as long as a worker has spoken within `alone_limit_s` and none has told of a higher term.
    """

    def __init__(self, lease: Lease, *, clock: Clock, ttl_s: float, alone_limit_s: float = ALONE_LIMIT_S) -> None:
        self._lease = lease
        self._clock = clock
        self._ttl_s = ttl_s
        self._alone_limit_s = alone_limit_s
        self._term = 0
        self._least_term = 1
        self._won_s = self._ends_s = clock.now()
        self._outranked = asyncio.Event()
        self._leader = ""
        self._trouble = ""

    async def win(self) -> int:
        """See `Leadership`."""
        while True:
            pause_s = LONGEST_LOOK_PAUSE_S
            try:
                held = await self._look()
                asked_s = self._clock.now()
                found = held or await self._lease.take(least_term=self._least_term)
            except LeaseUnreachable as error:
                self._note_trouble(str(error))
            else:
                if not isinstance(found, Held):
                    self._begin(found, asked_s)
                    return found
                self._leader = found.holder
                # Redis may lose its count of terms: the next is above all that we have seen.
                self._least_term = max(self._least_term, found.term + 1)
                pause_s = max(SHORTEST_LOOK_PAUSE_S, min(found.left_s, LONGEST_LOOK_PAUSE_S))
            await self._clock.sleep(pause_s)

    async def lose(self, *, heard_s: Callable[[], float]) -> str:
        """See `Leadership`."""
        why = await race(self._renew_until_refused(heard_s), self._until_outranked())
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
        trouble = ""
        for _ in range(RESIGN_TRIES):
            try:
                await self._lease.give_up()
                return
            except LeaseUnreachable as error:
                trouble = str(error)
        log.warning("the lease could not be given up (%s); it ends by itself", trouble)

    async def _look(self) -> Held | None:
        """Who holds the lease; who led through an outage of Redis has a whole lease's time to ask for it again."""
        held = await self._lease.look()
        if held is None and self._trouble:
            await self._clock.sleep(self._ttl_s)
            held = await self._lease.look()
        self._note_trouble("")
        return held

    def _begin(self, term: int, asked_s: float) -> None:
        self._term = term
        self._least_term = max(self._least_term, term + 1)
        self._outranked.clear()
        self._won_s = asked_s
        self._count_from(asked_s)

    def _count_from(self, asked_s: float) -> None:
        self._ends_s = asked_s + self._ttl_s * COUNTED_SHARE

    async def _renew_until_refused(self, heard_s: Callable[[], float]) -> str:
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
                now = self._clock.now()
                if now - max(self._won_s, heard_s()) <= self._alone_limit_s:
                    self._count_from(now)
                elif now >= self._ends_s:
                    return f"the lease cannot be reached ({error}), and no worker speaks to this scheduler"
            else:
                self._note_trouble("")
                self._count_from(asked_s)
                pause_s = self._ttl_s / RENEWALS_PER_LEASE

    async def _until_outranked(self) -> str:
        await self._outranked.wait()
        return f"a worker has met term {self._least_term - 1}, and ours is {self._term}"

    def _note_trouble(self, trouble: str) -> None:
        """Say once that the lease cannot be reached, and once that it can be again."""
        if trouble and not self._trouble:
            log.error("the leader's lease cannot be reached (%s); nobody else comes to lead until it can", trouble)
        elif self._trouble and not trouble:
            log.info("the leader's lease can be reached again")
        self._trouble = trouble
