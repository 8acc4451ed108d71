"""The registry in Redis: shared by every kv_store on it, and kept when kv_store restarts. Rules: `redis_scripts`.

One RPC is one script call, bounded by one timeout. A call that timed out may still run later, when Redis wakes up;
since calls are idempotent, fenced by incarnation and under lease, at worst an entry lingers until its owner reconciles.
A Redis that lost its memory is an empty registry: owners publish again what they still hold (ReconcileKv). Fences are
lost with it, which is safe: an owner checks life, attempt and lease itself before it sends any K/V.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from common.core.ids import BlockAttempt, RequestId, WorkerLife
from common.core.registry import KvOutcome, Reconciliation
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.redis_address import RedisAddress
from common.rpc.convert import kv_handle_from_proto, kv_handle_to_proto
from sangam.v1 import types_pb2
from services.kv_store import redis_scripts
from services.kv_store.redis_scripts import Script

CALL_TIMEOUT_S = 1.0
"""Longest wait for Redis in one call, that for a connection included; below the deadline of the registry's callers."""

MAX_CONNECTIONS = 16
"""Connections to Redis; further calls wait for one within their timeout."""

PREFIX = "{sangam:kv}:"
"""Of every key. The braces keep them in one slot of a Redis Cluster."""

_ENTRY_PREFIX = f"{PREFIX}entry:"
_Argument = str | bytes | int
_READY_TTL_MS = 60_000


class RedisStore:
    """A `KvStore` on the Redis at `address`. It connects when first used and belongs to the running event loop."""

    def __init__(self, address: RedisAddress, *, call_timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._call_timeout_s = call_timeout_s
        self._pool = BlockingConnectionPool(
            host=address.host,
            port=address.port,
            db=address.database,
            max_connections=MAX_CONNECTIONS,
            timeout=call_timeout_s,
            socket_timeout=call_timeout_s,
            socket_connect_timeout=call_timeout_s,
            # Once more at once, on a fresh connection: Redis may have restarted since this one was last used.
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        )
        self._redis = Redis(connection_pool=self._pool)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._redis.aclose()
        await self._pool.aclose()

    async def check(self) -> None:
        """Raise WireError(PEER_LOST) unless Redis takes writes now: one that is full or read-only is of no use."""
        await self._bounded(self._redis.set(f"{PREFIX}ready", 1, px=_READY_TTL_MS))

    async def publish(self, entries: Sequence[KvHandle]) -> list[KvOutcome]:
        """See `KvStore`."""
        arguments = [argument for entry in entries for argument in _publish_arguments(entry)]
        return _outcomes(await self._run(redis_scripts.PUBLISH, arguments))

    async def get(self, attempts: Sequence[BlockAttempt]) -> list[KvHandle]:
        """See `KvStore`."""
        found = await self._run(redis_scripts.GET, _names(attempts))
        return [_entry_of(handle, lease_ms) for handle, lease_ms in found]

    async def renew(self, owner: WorkerLife, attempts: Sequence[BlockAttempt], lease_s: float) -> list[KvOutcome]:
        """See `KvStore`."""
        arguments: list[_Argument] = [*_life(owner), _milliseconds(lease_s), *_names(attempts)]
        return _outcomes(await self._run(redis_scripts.RENEW, arguments))

    async def release(self, owner: WorkerLife, attempts: Sequence[BlockAttempt]) -> list[KvOutcome]:
        """See `KvStore`."""
        return _outcomes(await self._run(redis_scripts.RELEASE, [*_life(owner), *_names(attempts)]))

    async def reconcile(self, owner: WorkerLife, held: Sequence[BlockAttempt]) -> Reconciliation:
        """See `KvStore`."""
        unknown, removed = await self._run(redis_scripts.RECONCILE, [*_life(owner), *_names(held)])
        return Reconciliation(unknown=_attempts(unknown), removed=_attempts(removed))

    async def fence(self, life: WorkerLife) -> int:
        """See `KvStore`."""
        return int(await self._run(redis_scripts.FENCE, _life(life)))

    async def some_entries(self, cursor: int, *, keys: int) -> tuple[int, list[str]]:
        """Names of the entries among the next `keys` keys, or a few more, from `cursor` on, and where to go on.

        Redis' SCAN: 0 begins and ends a round; what is there during all of a round is named at least once.
        """
        scan = self._redis.scan(cursor, match=f"{_ENTRY_PREFIX}*", count=keys)
        next_cursor, found = await self._bounded(scan)
        return int(next_cursor), [key.decode().removeprefix(_ENTRY_PREFIX) for key in found]

    async def unowned(self, names: Sequence[str]) -> dict[str, str]:
        """Those of the entries of these names that are held for nobody: in words, why."""
        found = await self._run(redis_scripts.UNOWNED, names) if names else ()
        return {name.decode(): why.decode() for name, why in found}

    async def _run(self, script: Script, arguments: Sequence[_Argument]) -> Any:
        return await self._bounded(self._evaluate(script, arguments))

    async def _evaluate(self, script: Script, arguments: Sequence[_Argument]) -> Any:
        try:
            return await self._redis.evalsha(script.sha, 1, PREFIX, *arguments)
        except NoScriptError:  # a new Redis, or its script cache was flushed; EVAL fills it again
            return await self._redis.eval(script.source, 1, PREFIX, *arguments)

    async def _bounded(self, call: Awaitable[Any]) -> Any:
        """The answer of `call`; WireError(PEER_LOST) if Redis refuses it, or does not answer in time."""
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await call
        except TimeoutError:
            cause: Exception = TimeoutError(f"no answer within {self._call_timeout_s} s")
        except (RedisError, OSError) as error:
            cause = error
        if isinstance(cause, ReadOnlyError):
            # It was demoted: connect anew, to whatever the address leads to now.
            await self._pool.disconnect(inuse_connections=False)
        raise WireError(Reason.PEER_LOST, "the registry's Redis does not answer") from cause


def _publish_arguments(entry: KvHandle) -> tuple[_Argument, ...]:
    handle = kv_handle_to_proto(entry).SerializeToString()
    return (*_life(entry.owner), _name(entry.attempt), handle, _milliseconds(entry.lease_s))


def _entry_of(handle: bytes, lease_ms: int) -> KvHandle:
    return replace(kv_handle_from_proto(types_pb2.KvHandle.FromString(handle)), lease_s=lease_ms / 1000)


def _life(life: WorkerLife) -> tuple[str, str]:
    return life.worker_id, f"{life.incarnation:020d}"


def _milliseconds(lease_s: float) -> int:
    return round(lease_s * 1000)


def _name(attempt: BlockAttempt) -> str:
    """Unique: the numbers come first, so that nothing in a request id can be taken for them."""
    return f"{attempt.block}/{attempt.attempt}/{attempt.request_id}"


def _names(attempts: Iterable[BlockAttempt]) -> list[str]:
    return [_name(attempt) for attempt in attempts]


def _attempts(names: Iterable[bytes]) -> tuple[BlockAttempt, ...]:
    """The attempts of those names, in order of attempt."""
    parts = (name.decode().split("/", 2) for name in names)
    return tuple(sorted(BlockAttempt(RequestId(request), int(block), int(number)) for block, number, request in parts))


def _outcomes(texts: Iterable[bytes]) -> list[KvOutcome]:
    return [KvOutcome(text.decode()) for text in texts]
