"""What only a registry in Redis has to hold: it is shared, it may vanish, hang, fill up or come back empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.registry import KvOutcome, Reconciliation
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.redis_address import RedisAddress
from services.kv_store.redis_store import CALL_TIMEOUT_S, MAX_CONNECTIONS, PREFIX, RedisStore
from tests.core.samples import kv_handle
from tests.kv_store.registry import HOUR_S
from tests.redis_server import RedisServer

OK, STALE = KvOutcome.OK, KvOutcome.STALE_INCARNATION
LIFE = WorkerLife(WorkerId("p0"), 7)
SHORT_S = 0.2
WAIT_LIMIT_S = 20


def attempt(request_id: str) -> BlockAttempt:
    return BlockAttempt(RequestId(request_id), 0, 0)


def entry(request_id: str, owner: WorkerLife = LIFE, lease_s: float = HOUR_S) -> KvHandle:
    return kv_handle(attempt(request_id), owner, lease_s=lease_s)


@pytest.fixture
async def open_store(redis_server: RedisServer) -> AsyncIterator[Callable[..., RedisStore]]:
    """Makes stores on one Redis, each with connections of its own, as two kv_store processes have."""
    stores: list[RedisStore] = []

    def make(call_timeout_s: float = CALL_TIMEOUT_S) -> RedisStore:
        stores.append(RedisStore(RedisAddress.parse(redis_server.url), call_timeout_s=call_timeout_s))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


async def found_in(store: RedisStore, *request_ids: str) -> list[str]:
    return [handle.attempt.request_id for handle in await store.get([attempt(name) for name in request_ids])]


def exists(server: RedisServer, request_id: str) -> bool:
    """Whether Redis itself still has the entry."""
    return server.command("EXISTS", entry_key(request_id)) == "1"


def entry_key(request_id: str) -> str:
    return f"{PREFIX}entry:0/0/{request_id}"


async def refusal_of(call: Awaitable[object]) -> Reason:
    with pytest.raises(WireError) as caught:
        await call
    return caught.value.reason


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Redis tells nobody when a lease ends."""
    async with asyncio.timeout(WAIT_LIMIT_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://redis.svc:6379/3", RedisAddress(host="redis.svc", port=6379, database=3)),
        ("redis://127.0.0.1:7000", RedisAddress(host="127.0.0.1", port=7000, database=0)),
        ("redis://[::1]:7000/", RedisAddress(host="::1", port=7000, database=0)),
    ],
)
def test_addresses(url, address):
    assert RedisAddress.parse(url) == address


async def test_two_instances_on_one_redis_are_one_registry(open_store):
    one, two = open_store(), open_store()
    assert await one.publish([entry("a"), entry("b")]) == [OK, OK]
    assert await found_in(two, "a", "b") == ["a", "b"]
    assert await two.renew(LIFE, [attempt("a")], 5 * HOUR_S) == [OK]
    assert (await one.get([attempt("a")]))[0].lease_s > 4 * HOUR_S
    assert await two.release(LIFE, [attempt("a")]) == [OK]
    assert await found_in(one, "a", "b") == ["b"]
    assert await two.fence(LIFE) == 1
    assert await one.publish([entry("c")]) == [STALE]


async def test_a_kv_store_that_restarts_finds_its_entries_and_fences(open_store):
    first = open_store()
    await first.publish([entry("a"), entry("b", WorkerLife(WorkerId("p1"), 1))])
    await first.fence(LIFE)
    await first.aclose()
    second = open_store()
    assert await found_in(second, "a", "b") == ["b"]
    assert await second.publish([entry("a")]) == [STALE]


async def test_redis_ends_leases_by_itself(open_store, redis_server):
    store = open_store()
    await store.publish([entry("a", lease_s=SHORT_S), entry("b")])
    await store.aclose()  # nobody is left to look at a clock

    async def gone() -> bool:
        return not exists(redis_server, "a")

    await eventually(gone)
    assert exists(redis_server, "b")
    assert await found_in(open_store(), "a", "b") == ["b"]


async def test_a_shorter_renewal_does_not_end_a_lease_early(open_store, redis_server):
    store = open_store()
    await store.publish([entry("long"), entry("short", lease_s=SHORT_S)])
    assert int(redis_server.command("PTTL", f"{PREFIX}owner:p0")) > int(redis_server.command("PTTL", entry_key("long")))
    assert await store.renew(LIFE, [attempt("long")], SHORT_S) == [OK]
    assert await store.publish([entry("long", lease_s=SHORT_S)]) == [OK]

    async def short_is_gone() -> bool:
        return await found_in(store, "short") == []

    await eventually(short_is_gone)
    assert await found_in(store, "long") == ["long"]
    assert await store.fence(LIFE) == 1


async def test_nothing_stays_for_ever(open_store, redis_server):
    """Every key has a lease or a lifetime, and an owner that never reconciles still leaves no trail of names."""
    store = open_store()
    await store.check()
    await store.publish([entry(f"old{index}", lease_s=SHORT_S) for index in range(50)])
    await store.fence(WorkerLife(WorkerId("p9"), 1))
    await store.renew(WorkerLife(WorkerId("p8"), 1), [attempt("none")], HOUR_S)

    async def names_are_forgotten() -> bool:
        await store.publish([entry("new")])
        names: str = redis_server.command("ZCARD", f"{PREFIX}owner:p0")
        return names == "1"

    await eventually(names_are_forgotten)
    keys = redis_server.command("KEYS", "*").split()
    assert sorted(key.removeprefix(PREFIX) for key in keys) == [
        *("entry:0/0/new", "life:p0", "life:p8", "life:p9", "owner:p0", "ready"),
    ]
    assert all(int(redis_server.command("PTTL", key)) > 0 for key in keys)


async def test_a_redis_that_restarts_empty_is_filled_by_reconciliation(open_store, redis_server):
    store = open_store()
    held = [entry("a"), entry("b")]
    await store.publish(held)
    redis_server.kill()
    redis_server.start()
    difference = await store.reconcile(LIFE, [handle.attempt for handle in held])
    assert difference == Reconciliation(unknown=(attempt("a"), attempt("b")), removed=())
    assert await store.publish(held) == [OK, OK]
    assert await found_in(store, "a", "b") == ["a", "b"]
    assert await store.reconcile(LIFE, [attempt("a")]) == Reconciliation(unknown=(), removed=(attempt("b"),))


async def test_without_redis_every_call_is_refused_and_works_again_once_it_is_back(open_store, redis_server):
    store = open_store()
    await store.publish([entry("a")])
    redis_server.kill()
    attempts = [attempt("a")]
    calls = [
        store.publish([entry("a")]),
        store.get(attempts),
        store.renew(LIFE, attempts, HOUR_S),
        store.release(LIFE, attempts),
        store.reconcile(LIFE, attempts),
        store.fence(LIFE),
        store.check(),
    ]
    assert [await refusal_of(call) for call in calls] == [Reason.PEER_LOST] * len(calls)
    redis_server.start()
    await store.check()
    assert await store.publish([entry("a")]) == [OK]


async def test_a_redis_that_hangs_holds_no_call_and_mixes_no_answers_up(open_store, redis_server):
    """More calls than connections, each given up at its timeout; later answers are those of later questions."""
    # Short, for the refusals' sake, yet more than this process may stand still while it connects anew at the end.
    store = open_store(call_timeout_s=1.0)
    names = [f"r{index}" for index in range(2 * MAX_CONNECTIONS)]
    await asyncio.gather(*(store.publish([entry(name)]) for name in names))
    redis_server.pause()
    try:
        async with asyncio.timeout(WAIT_LIMIT_S):
            refusals = await asyncio.gather(*(refusal_of(store.get([attempt(name)])) for name in names))
    finally:
        redis_server.resume()
    assert refusals == [Reason.PEER_LOST] * len(names)
    patient = open_store(call_timeout_s=WAIT_LIMIT_S)
    assert await found_in(patient, *names) == names
    answers = await asyncio.gather(*(found_in(store, name) for name in names[:MAX_CONNECTIONS]))
    assert answers == [[name] for name in names[:MAX_CONNECTIONS]]


async def test_the_timeout_is_of_the_whole_call(redis_server):
    """Connecting, asking, and sending a script that Redis has forgotten: each step is in time, all of them are not."""
    async with forwarder(lambda: redis_server.port, delay_s=0.1) as port:
        store = RedisStore(RedisAddress(host="127.0.0.1", port=port, database=0), call_timeout_s=0.3)
        assert await refusal_of(store.get([attempt("a")])) is Reason.PEER_LOST
        await store.aclose()


async def test_cancelled_calls_leave_usable_connections(open_store):
    store = open_store()
    names = [f"r{index}" for index in range(40)]
    await store.publish([entry(name) for name in names])
    for name in names:
        call = asyncio.ensure_future(found_in(store, name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    assert await asyncio.gather(*(found_in(store, name) for name in names)) == [[name] for name in names]


async def test_a_redis_that_takes_no_writes_is_not_ready(open_store, redis_server):
    store = open_store()
    await store.publish([entry("a")])
    redis_server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert await refusal_of(store.check()) is Reason.PEER_LOST
    assert await refusal_of(store.publish([entry("b")])) is Reason.PEER_LOST
    assert await found_in(store, "a", "b") == ["a"]
    redis_server.command("CONFIG", "SET", "min-replicas-to-write", "0")
    await store.check()
    assert await store.publish([entry("b")]) == [OK]
    assert await found_in(store, "a", "b") == ["a", "b"]


async def test_a_redis_that_is_full_is_not_ready(open_store, redis_server):
    store = open_store()
    redis_server.command("CONFIG", "SET", "maxmemory", "1")
    assert await refusal_of(store.check()) is Reason.PEER_LOST
    redis_server.command("CONFIG", "SET", "maxmemory", "0")
    await store.check()


async def test_a_failover_behind_the_same_address_is_followed(redis_server, tmp_path_factory):
    """The primary is demoted and the address leads to another one: connections to the old one are given up."""
    successor = RedisServer(tmp_path_factory.mktemp("successor"))
    successor.start()
    try:
        async with forwarder(lambda: target.port) as port:
            target = redis_server
            store = RedisStore(RedisAddress(host="127.0.0.1", port=port, database=0))
            assert await store.publish([entry("a")]) == [OK]
            redis_server.command("REPLICAOF", "127.0.0.1", str(successor.port))
            target = successor
            assert await refusal_of(store.publish([entry("b")])) is Reason.PEER_LOST
            assert await store.publish([entry("b")]) == [OK]
            assert await found_in(store, "b") == ["b"]
            await store.aclose()
    finally:
        successor.stop()


@asynccontextmanager
async def forwarder(target_port: Callable[[], int], delay_s: float = 0) -> AsyncIterator[int]:
    """A port whose new connections lead to the loopback port that `target_port` names then; it holds data up."""
    async with asyncio.TaskGroup() as tasks:

        async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                await asyncio.sleep(delay_s)
                writer.write(data)
            writer.close()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port())
            tasks.create_task(pipe(reader, far_writer))
            tasks.create_task(pipe(far_reader, writer))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        server.close()


async def test_scripts_that_redis_forgot_are_sent_again(open_store, redis_server):
    store = open_store()
    for _ in range(2):
        redis_server.command("SCRIPT", "FLUSH")
        assert await store.publish([entry("a")]) == [OK]
        redis_server.command("SCRIPT", "FLUSH")
        assert await found_in(store, "a") == ["a"]


async def test_a_call_is_one_script_run_however_many_entries_it_has(open_store, redis_server):
    store = open_store()
    names = [f"r{index}" for index in range(200)]
    await store.publish([entry("first")])
    redis_server.command("CONFIG", "RESETSTAT")
    await store.publish([entry(name) for name in names])
    lines = redis_server.command("INFO", "commandstats").splitlines()
    runs = [line for line in lines if line.startswith("cmdstat_evalsha:")]
    assert len(runs) == 1
    assert runs[0].startswith("cmdstat_evalsha:calls=1,")
    assert not any(line.startswith(("cmdstat_scan", "cmdstat_keys")) for line in lines)


async def test_stores_with_different_databases_do_not_meet(open_store, redis_server):
    address = RedisAddress(host="127.0.0.1", port=redis_server.port, database=5)
    await open_store().publish([entry("a")])
    other = RedisStore(address)
    try:
        assert await found_in(other, "a") == []
    finally:
        await other.aclose()
