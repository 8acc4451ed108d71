"""A registry over each store, behind a real loopback server, with a hand on its time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from common.clock import ManualClock
from common.redis_address import RedisAddress
from services.kv_store.memory_store import MemoryStore
from services.kv_store.redis_store import RedisStore
from tests.kv_store.registry import Registry, served
from tests.redis_server import RedisServer


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis of this test's own."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", "redis"])
async def registry(request: pytest.FixtureRequest) -> AsyncIterator[Registry]:
    """The same service over either store."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            clock = ManualClock(start_s=1000.0)
            yield await stack.enter_async_context(served(MemoryStore(clock), clock.advance))
        else:
            server: RedisServer = request.getfixturevalue("redis_server")
            store = RedisStore(RedisAddress.parse(server.url))
            stack.push_async_callback(store.aclose)
            yield await stack.enter_async_context(served(store, advance_leases(server)))


def advance_leases(server: RedisServer) -> Callable[[float], None]:
    """Time for a Redis whose clock cannot be turned: every key has that much less of it left."""

    def advance(duration_s: float) -> None:
        script = (
            "for _, key in ipairs(redis.call('KEYS', '*')) do local left = redis.call('PTTL', key); "
            "if left >= 0 then redis.call('PEXPIRE', key, left - tonumber(ARGV[1])) end end"
        )
        server.command("EVAL", script, "0", str(round(duration_s * 1000)))

    return advance
