"""Leases in a real Redis that are held for nobody: every kind is found, in parts, and nothing else is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.unowned import Holding
from common.core.work import KvHandle
from common.redis_address import RedisAddress
from services.kv_store.lease_audit import KEYS_PER_LOOK, MAX_FOUND, LeaseAudit
from services.kv_store.redis_store import PREFIX, RedisStore
from tests.core.samples import kv_handle
from tests.kv_store.registry import HOUR_S
from tests.redis_server import RedisServer

LIFE = WorkerLife(WorkerId("p0"), 7)
FOREIGN_KEYS = 5 * KEYS_PER_LOOK


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(RedisAddress.parse(redis_server.url))
    yield store
    await store.aclose()


def entries(*names: str, owner: WorkerLife = LIFE) -> list[KvHandle]:
    return [kv_handle(BlockAttempt(RequestId(name), 0, 0), owner, lease_s=HOUR_S) for name in names]


def found_by(audit: LeaseAudit) -> set[str]:
    assert all(found.holding is Holding.LEASES and found.count == 1 for found in audit.unowned())
    return {found.name for found in audit.unowned()}


async def test_a_registry_in_order_holds_nothing_for_nobody(store: RedisStore) -> None:
    audit, newer = LeaseAudit(store), WorkerLife(LIFE.worker_id, 8)
    await store.publish(entries("a", "b", "c"))
    # A block may go to another worker, a life be followed, another be fenced, an owner hold less than it has said.
    await store.publish(entries("a", owner=WorkerLife(WorkerId("p1"), 1)))
    await store.publish(entries("d", "e", owner=newer))
    await store.publish(entries("f", owner=WorkerLife(WorkerId("p2"), 1)))
    await store.fence(WorkerLife(WorkerId("p2"), 1))
    await store.reconcile(newer, [BlockAttempt(RequestId("e"), 0, 0)])
    await store.renew(newer, [BlockAttempt(RequestId("e"), 0, 0)], 2 * HOUR_S)
    for _ in range(3):
        await audit.look()
        assert found_by(audit) == set()


async def test_every_way_to_be_held_for_nobody_is_named_until_it_is_mended(
    store: RedisStore, redis_server: RedisServer
) -> None:
    audit = LeaseAudit(store)
    await store.publish(entries("endless", "unknown"))
    await store.publish(entries("left", "fenced", owner=WorkerLife(WorkerId("p1"), 5)))
    # What only a bug does.
    redis_server.command("PERSIST", f"{PREFIX}entry:0/0/endless")
    redis_server.command("ZREM", f"{PREFIX}owner:p0", "0/0/unknown")
    redis_server.command("HSET", f"{PREFIX}life:p1", "fenced", f"{5:020d}")
    redis_server.command("HSET", f"{PREFIX}entry:0/0/nobody", "handle", "")
    redis_server.command("PEXPIRE", f"{PREFIX}entry:0/0/nobody", "3600000")
    await audit.look()
    assert found_by(audit) == {
        "entry of 0/0/endless, without a lease",
        "entry of 0/0/unknown, not known by its owner",
        "entry of 0/0/left, of a life that is over",
        "entry of 0/0/fenced, of a life that is over",
        "entry of 0/0/nobody, without an owner",
    }
    for name in ("endless", "left", "nobody"):
        redis_server.command("DEL", f"{PREFIX}entry:0/0/{name}")
    redis_server.command("HSET", f"{PREFIX}life:p1", "fenced", f"{4:020d}")
    await audit.look()
    assert found_by(audit) == {"entry of 0/0/unknown, not known by its owner"}


async def test_a_large_redis_is_looked_through_in_parts_and_findings_are_kept(
    store: RedisStore, redis_server: RedisServer
) -> None:
    populate = "for number = 1, tonumber(ARGV[1]) do redis.call('SET', 'somebody-elses:' .. number, '') end"
    redis_server.command("EVAL", populate, "0", str(FOREIGN_KEYS))
    await store.publish(entries(*(f"r{index}" for index in range(200))))
    redis_server.command("DEL", f"{PREFIX}owner:p0")
    audit, counts = LeaseAudit(store), []
    for _ in range(2 * FOREIGN_KEYS // KEYS_PER_LOOK):
        await audit.look()
        counts.append(len(audit.unowned()))
    assert counts[0] < 200, "no look goes through everything"
    assert counts == sorted(counts) and counts[-1] == 200


async def test_more_findings_than_are_kept_are_as_many_as_are_kept(
    store: RedisStore, redis_server: RedisServer
) -> None:
    await store.publish(entries(*(f"r{index}" for index in range(2 * MAX_FOUND))))
    redis_server.command("DEL", f"{PREFIX}owner:p0")
    audit = LeaseAudit(store)
    for _ in range(6):
        await audit.look()
    first = found_by(audit)
    await audit.look()
    assert len(first) == MAX_FOUND and found_by(audit) == first, "the same ones, so that they are told once"


async def test_while_redis_is_away_nothing_counts_as_found(store: RedisStore, redis_server: RedisServer) -> None:
    await store.publish(entries("a"))
    redis_server.command("DEL", f"{PREFIX}owner:p0")
    audit = LeaseAudit(store)
    await audit.look()
    assert len(audit.unowned()) == 1
    redis_server.kill()
    await audit.look()
    assert not audit.unowned()
    redis_server.start()
    await audit.look()
    assert not audit.unowned()
