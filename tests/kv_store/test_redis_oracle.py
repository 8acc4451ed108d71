"""Two stores on one Redis against `RegistryCore`, a registry in plain Python: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.registry import RegistryCore
from common.core.work import KvHandle
from common.redis_address import RedisAddress
from services.kv_store.redis_store import RedisStore
from tests.core.samples import kv_handle
from tests.kv_store.registry import HOUR_S
from tests.redis_server import RedisServer

ATTEMPTS = [BlockAttempt(RequestId(name), block, 0) for name in ("a", "b") for block in (0, 1)]
# Consecutive numbers that a 53-bit float cannot tell apart.
LIVES = [WorkerLife(WorkerId(worker), 2**60 + number) for worker in ("p", "q") for number in (1, 2, 3)]


@dataclass(frozen=True)
class Call:
    """A method of the registry and its arguments; `store` says which of the two instances takes it."""

    method: str
    arguments: tuple[Any, ...]
    store: int


def handle(attempt: BlockAttempt, owner: WorkerLife, hours: int) -> KvHandle:
    return kv_handle(attempt, owner, lease_s=hours * HOUR_S)


lives, hours = st.sampled_from(LIVES), st.integers(0, 4)
some_attempts = st.lists(st.sampled_from(ATTEMPTS), max_size=4)
entries = st.lists(st.builds(handle, st.sampled_from(ATTEMPTS), lives, hours), min_size=1, max_size=4)
calls = st.one_of(
    st.tuples(st.just("publish"), st.tuples(entries)),
    st.tuples(st.just("get"), st.tuples(some_attempts)),
    st.tuples(st.just("renew"), st.tuples(lives, some_attempts, hours.map(lambda number: number * HOUR_S))),
    st.tuples(st.just("release"), st.tuples(lives, some_attempts)),
    st.tuples(st.just("reconcile"), st.tuples(lives, some_attempts)),
    st.tuples(st.just("fence"), st.tuples(lives)),
).flatmap(lambda call: st.builds(Call, st.just(call[0]), st.just(call[1]), st.integers(0, 1)))
everything = Call(method="get", arguments=(ATTEMPTS,), store=0)

with_redis = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def oracle_answers(history: Sequence[Call]) -> list[Any]:
    core = RegistryCore()
    times = {"publish", "get", "renew", "release", "reconcile"}
    return [getattr(core, call.method)(*call.arguments, *([0.0] if call.method in times else [])) for call in history]


def whole_hours(answer: Any) -> Any:
    """Answers compare equal whatever part of the first hour has passed."""
    if not isinstance(answer, list):
        return answer
    return [
        replace(item, lease_s=math.ceil(item.lease_s / HOUR_S) * HOUR_S) if isinstance(item, KvHandle) else item
        for item in answer
    ]


async def ask(stores: Sequence[RedisStore], call: Call) -> Any:
    return whole_hours(await getattr(stores[call.store], call.method)(*call.arguments))


async def redis_answers(server: RedisServer, history: Sequence[Call], at_once: Sequence[Call] = ()) -> list[Any]:
    """Answers to `history` one by one, then to `at_once` all together, then to `everything`."""
    server.command("FLUSHALL")
    stores = [RedisStore(RedisAddress.parse(server.url), call_timeout_s=20) for _ in range(2)]
    try:
        one_by_one = [await ask(stores, call) for call in history]
        together = await asyncio.gather(*(ask(stores, call) for call in at_once))
        return [*one_by_one, *together, await ask(stores, everything)]
    finally:
        for store in stores:
            await store.aclose()


@given(history=st.lists(calls, max_size=25))
@settings(with_redis, max_examples=150)
def test_calls_spread_over_two_stores_are_answered_like_the_core(redis_server: RedisServer, history: list[Call]):
    assert asyncio.run(redis_answers(redis_server, history)) == oracle_answers([*history, everything])


@given(before=st.lists(calls, max_size=6), racing=st.lists(calls, min_size=2, max_size=4))
@settings(with_redis, max_examples=100)
def test_racing_calls_are_answered_as_in_some_order(redis_server: RedisServer, before: list[Call], racing: list[Call]):
    """Publications, renewals and fences at once through both stores: as if one had come after the other."""
    answers = asyncio.run(redis_answers(redis_server, before, racing))
    known, raced, last = answers[: len(before)], answers[len(before) : -1], answers[-1]
    assert any(
        oracle_answers([*before, *(racing[index] for index in order), everything])
        == [*known, *(raced[index] for index in order), last]
        for order in permutations(range(len(racing)))
    )
