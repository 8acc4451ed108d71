"""Which of several schedulers leads, against a real Redis: one at a time, terms only grow, none past its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from common.clock import MonotonicClock
from common.redis_address import RedisAddress
from services.scheduler.leased_leadership import LeasedLeadership
from services.scheduler.redis_lease import LEASE_KEY, RedisLease
from tests.redis_server import RedisServer

TTL_S = 1.5
PATIENCE_S = 30.0

Candidate = Callable[[str], LeasedLeadership]


@pytest.fixture
async def candidate(redis_server: RedisServer) -> AsyncIterator[Candidate]:
    """Make a scheduler's leadership, by its name."""
    async with AsyncExitStack() as stack:

        def make(name: str) -> LeasedLeadership:
            lease = RedisLease(RedisAddress.parse(redis_server.url), name=name, ttl_s=TTL_S)
            stack.push_async_callback(lease.aclose)
            return LeasedLeadership(lease, clock=MonotonicClock(), ttl_s=TTL_S)

        yield make


async def in_time(waited: asyncio.Future[int] | asyncio.Task[str]):
    return await asyncio.wait_for(waited, PATIENCE_S)


async def test_the_first_leads_and_the_others_know_who_does(candidate: Candidate) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    term = await first.win()
    assert first.holds() and term > 0
    keeping = asyncio.create_task(first.lose())
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


async def test_a_leader_that_resigns_is_followed_long_before_its_lease_ends(
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


async def test_a_leader_stops_when_redis_stands_still(candidate: Candidate, redis_server: RedisServer) -> None:
    first = candidate("one:1")
    await first.win()
    redis_server.pause()
    why = await asyncio.wait_for(first.lose(), PATIENCE_S)
    assert not first.holds()
    assert "could not be renewed in time" in why
    redis_server.resume()
    # What it asked for while Redis stood still may be granted now; all the same it leads under a new term only.
    assert await asyncio.wait_for(first.win(), PATIENCE_S) > 0


async def test_a_leader_outlasts_a_redis_that_restarts_empty_within_its_lease(
    candidate: Candidate, redis_server: RedisServer
) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    term = await first.win()
    redis_server.command("FLUSHALL")
    losing = asyncio.create_task(first.lose())
    # Back in Redis, and the counter of terms with it.
    async with asyncio.timeout(PATIENCE_S):
        while redis_server.command("GET", LEASE_KEY).split(" ")[:2] != [str(term), "one:1"]:  # noqa: ASYNC110  # in Redis
            await asyncio.sleep(0.05)
    assert first.holds()
    losing.cancel()
    assert await asyncio.wait_for(second.win(), PATIENCE_S) > term


async def test_a_leader_whose_place_was_taken_meanwhile_stops(candidate: Candidate, redis_server: RedisServer) -> None:
    first, second = candidate("one:1"), candidate("two:2")
    await first.win()
    # A failover to a Redis that never heard of the lease.
    redis_server.command("FLUSHALL")
    await second.win()
    assert await asyncio.wait_for(first.lose(), PATIENCE_S) == "another scheduler has taken the lease"
    assert second.holds() and not first.holds()


async def test_a_leader_that_hears_of_a_higher_term_stops_and_leads_again_above_it(candidate: Candidate) -> None:
    first = candidate("one:1")
    term = await first.win()
    losing = asyncio.create_task(first.lose())
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
