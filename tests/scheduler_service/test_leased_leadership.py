"""Which of several schedulers leads, against a real Redis: terms only grow, and an outage of Redis changes nobody."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from common.clock import MonotonicClock
from common.redis_address import RedisAddress
from services.scheduler.leased_leadership import LeasedLeadership
from services.scheduler.redis_lease import LEASE_KEY, LeaseUnreachable, RedisLease
from tests.chaos.wire import Wire
from tests.redis_server import RedisServer
from tests.scheduler_service.scripted import until

TTL_S = 1.5
PATIENCE_S = 30.0

Candidate = Callable[..., LeasedLeadership]


def no_worker() -> float:
    return -math.inf


def a_worker() -> float:
    """One that has just spoken."""
    return MonotonicClock().now()


class LossyLease(RedisLease):
    """Hears nothing of the first time that it gives the lease up; nor does Redis."""

    tries = 0

    async def give_up(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise LeaseUnreachable("lost")
        await super().give_up()


@pytest.fixture
async def candidate(redis_server: RedisServer) -> AsyncIterator[Candidate]:
    """Make a scheduler's leadership, by its name."""
    async with AsyncExitStack() as stack:

        def make(
            name: str, *, url: str = redis_server.url, ttl_s: float = TTL_S, alone_limit_s: float = 3600.0
        ) -> LeasedLeadership:
            lease = LossyLease(RedisAddress.parse(url), name=name, ttl_s=ttl_s)
            stack.push_async_callback(lease.aclose)
            return LeasedLeadership(lease, clock=MonotonicClock(), ttl_s=ttl_s, alone_limit_s=alone_limit_s)

        yield make


async def in_time(waited: asyncio.Future[int] | asyncio.Task[str]):
    return await asyncio.wait_for(waited, PATIENCE_S)


async def until_held(redis_server: RedisServer, term: int, name: str) -> None:
    """Wait until Redis names that holder of that term."""
    await until(lambda: redis_server.command("GET", LEASE_KEY).split(" ")[:2] == [str(term), name])


async def test_the_first_leads_and_the_others_know_who_does(candidate: Candidate) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    term = await first.win()
    assert first.holds() and term > 0
    keeping = asyncio.create_task(first.lose(heard_s=no_worker))
    waiting = asyncio.create_task(second.win())
    # Far longer than a lease: it is renewed.
    await asyncio.sleep(2 * TTL_S)
    assert first.holds() and not keeping.done() and not waiting.done()
    assert second.leader == "one:1" and not second.holds()
    for task in (keeping, waiting):
        task.cancel()


async def test_a_leader_that_falls_silent_is_followed_under_a_higher_term(candidate: Candidate) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    # Never renewed: what kill -9 leaves.
    term = await first.win()
    later = await asyncio.wait_for(second.win(), PATIENCE_S)
    assert later > term
    assert not first.holds(), "its own clock ended its time before another's began"


async def test_a_leader_that_resigns_is_followed_long_before_its_lease_ends_even_past_a_lost_word(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    await first.win()
    redis_server.command("PEXPIRE", LEASE_KEY, "3600000")
    waiting = asyncio.create_task(second.win())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await first.resign()
    await in_time(waiting)


async def test_a_redis_that_is_back_is_left_to_its_former_leader_for_a_while(
    candidate: Candidate, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(candidate("two:2", ttl_s=10.0).win())
    redis_server.kill()
    await until(lambda: "cannot be reached" in caplog.text)
    redis_server.start()
    # Long enough for a candidate that takes what it finds, far less than a lease.
    await asyncio.sleep(1.0)
    assert redis_server.command("GET", LEASE_KEY) == "" and not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize("trouble", ["pause", "kill"])
async def test_an_outage_of_redis_changes_no_leader_while_a_worker_speaks(
    candidate: Candidate, redis_server: RedisServer, trouble: str
) -> None:
    first, second = candidate("one:1", alone_limit_s=TTL_S), candidate("two:2")
    term = await first.win()
    keeping, waiting = asyncio.create_task(first.lose(heard_s=a_worker)), asyncio.create_task(second.win())
    await until(lambda: second.leader == "one:1")
    getattr(redis_server, trouble)()
    await asyncio.sleep(3 * TTL_S)
    assert first.holds() and not keeping.done()
    redis_server.resume() if trouble == "pause" else redis_server.start()
    # The lease is over in one Redis, unknown to the other: the one that led through the outage has it again.
    await until_held(redis_server, term, "one:1")
    await asyncio.sleep(TTL_S)
    assert first.holds() and not keeping.done() and not waiting.done()
    for task in (keeping, waiting):
        task.cancel()


async def test_a_leader_whom_neither_redis_nor_a_worker_answers_stops(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    first = candidate("one:1", alone_limit_s=2 * TTL_S)
    term = await first.win()
    redis_server.pause()
    losing = asyncio.create_task(first.lose(heard_s=no_worker))
    await asyncio.sleep(1.5 * TTL_S)
    assert first.holds(), "they have some time to come back"
    assert "no worker speaks" in await in_time(losing)
    assert not first.holds()
    redis_server.resume()
    # What it asked for while Redis stood still may be granted now; all the same it leads under a new term only.
    assert await asyncio.wait_for(first.win(), PATIENCE_S) > term


async def test_a_leader_that_stood_still_answers_nobody_before_it_has_asked(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    first = candidate("one:1")
    await first.win()
    losing = asyncio.create_task(first.lose(heard_s=a_worker))
    await asyncio.sleep(0)
    time.sleep(1.5 * TTL_S)  # noqa: ASYNC251  # as SIGSTOP does
    assert not first.holds()
    await until(first.holds)
    assert not losing.done(), "nobody has led meanwhile"
    losing.cancel()


async def test_a_term_is_above_all_that_a_candidate_has_seen_even_in_a_redis_that_has_seen_none(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    # Far above what follows from the clock: as if that of the next Redis were behind.
    ahead = await first.win() + 10**9
    first.outranked(ahead)
    term = await first.win()
    assert term > ahead
    waiting = asyncio.create_task(second.win())
    await until(lambda: second.leader == "one:1")
    redis_server.kill()
    redis_server.start()
    assert await in_time(waiting) > term


async def test_a_leader_cut_off_from_redis_goes_on_until_it_hears_of_its_successor(
    candidate: Candidate, wire: Wire
) -> None:
    first, second = candidate("one:1", url=f"redis://{wire.address}/0"), candidate("two:2")
    term = await first.win()
    losing = asyncio.create_task(first.lose(heard_s=a_worker))
    wire.cut()
    later = await asyncio.wait_for(second.win(), PATIENCE_S)
    assert later > term
    assert first.holds() and not losing.done(), "it cannot know; its workers serve its term no more"
    first.outranked(later)
    assert not first.holds()
    await in_time(losing)
    wire.mend()
    coming_back = asyncio.create_task(first.win())
    await until(lambda: first.leader == "two:2")
    coming_back.cancel()


async def test_a_leader_outlasts_a_redis_that_restarts_empty_within_its_lease(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    term = await first.win()
    redis_server.command("FLUSHALL")
    losing = asyncio.create_task(first.lose(heard_s=no_worker))
    # Back in Redis, and the counter of terms with it.
    await until_held(redis_server, term, "one:1")
    assert first.holds()
    losing.cancel()
    assert await asyncio.wait_for(second.win(), PATIENCE_S) > term


async def test_a_leader_whose_place_was_taken_meanwhile_stops(candidate: Candidate, redis_server: RedisServer) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    await first.win()
    # A failover to a Redis that never heard of the lease.
    redis_server.command("FLUSHALL")
    await second.win()
    assert await asyncio.wait_for(first.lose(heard_s=no_worker), PATIENCE_S) == "another scheduler has taken the lease"
    assert second.holds() and not first.holds()


async def test_a_leader_that_hears_of_a_higher_term_stops_and_leads_again_above_it(candidate: Candidate) -> None:
    first = candidate("one:1")
    term = await first.win()
    losing = asyncio.create_task(first.lose(heard_s=no_worker))
    first.outranked(term)
    await asyncio.sleep(0.05)
    assert first.holds(), "its own term is no higher one"
    first.outranked(term + 10**9)
    assert not first.holds()
    assert str(term + 10**9) in await in_time(losing)
    assert await asyncio.wait_for(first.win(), PATIENCE_S) > term + 10**9


async def test_a_candidate_waits_for_a_redis_that_is_not_there_yet(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    redis_server.kill()
    winning = asyncio.create_task(candidate("one:1").win())
    await asyncio.sleep(0.5)
    assert not winning.done()
    redis_server.start()
    await in_time(winning)
