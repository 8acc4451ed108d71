"""The leader's lease in Redis: one key that expires by itself, and the counter of terms.

Both are changed by scripts only, so that a look and the change it allows are one step. All times are Redis' own, as
milliseconds from now. A Redis that lost its memory has lost the counter: terms therefore also follow its clock, and
never go below what a candidate has met. A script that was given up may run all the same, when Redis wakes up: a
candidate therefore looks first, and takes the lease when it has just seen that nobody has it.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from common.errors import SangamError
from common.redis_address import RedisAddress

LEASE_KEY = "{sangam:scheduler}:leader"
"""Its value: term, name and a token of the holder's own. The braces keep both keys in one slot of a Redis Cluster."""
TERM_KEY = "{sangam:scheduler}:term"

# holder -> {the holder's value, its milliseconds left}, {"", 0} when nobody else has it.
_LOOK = """
local holder, held = ARGV[1], redis.call('GET', KEYS[1])
if not held or string.sub(held, -#holder - 1) == ' ' .. holder then return {'', 0} end
return {held, redis.call('PTTL', KEYS[1])}
"""

# holder, ttl_ms, least_term -> {term, "", 0} when taken, {0, the holder's value, its milliseconds left} otherwise.
_TAKE = """
local holder, ttl_ms, least = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, -#holder - 1) ~= ' ' .. holder then
  return {0, held, redis.call('PTTL', KEYS[1])}
end
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local term = math.max(now_ms, least, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
redis.call('SET', KEYS[2], string.format('%.0f', term))
redis.call('SET', KEYS[1], string.format('%.0f', term) .. ' ' .. holder, 'PX', ttl_ms)
return {term, '', 0}
"""

# holder, ttl_ms, term -> 1 when prolonged. A lease that is gone comes back while nobody has led since.
_RENEW = """
local value, ttl_ms, term = ARGV[3] .. ' ' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('GET', KEYS[1])
if held and held ~= value then return 0 end
if not held and tonumber(redis.call('GET', KEYS[2]) or '0') > term then return 0 end
redis.call('SET', KEYS[2], string.format('%.0f', term))
redis.call('SET', KEYS[1], value, 'PX', ttl_ms)
return 1
"""

# holder. Whatever its term: a take that was given up may have been granted.
_GIVE_UP = """
local holder, held = ARGV[1], redis.call('GET', KEYS[1])
if held and string.sub(held, -#holder - 1) == ' ' .. holder then redis.call('DEL', KEYS[1]) end
return 0
"""


LONGEST_CALL_S = 1.0
"""Longest wait for Redis in one call, however long the lease."""


class LeaseUnreachable(SangamError):
    """Redis refused, or did not answer in time: nothing is known of the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Another holds the lease: who, as it named itself, under which term, and for how long at most, in seconds."""

    holder: str
    term: int
    left_s: float


class RedisLease:
    """One scheduler's hand on the lease of the Redis at `address`; no call is retried, none outlasts a third of it.

    `name` is shown to others; what tells holders apart is a token drawn here. Belongs to the running event loop.
    """

    def __init__(self, address: RedisAddress, *, name: str, ttl_s: float) -> None:
        self._holder = f"{name} {secrets.token_hex(8)}"
        self._ttl_s = ttl_s
        self._call_timeout_s = min(ttl_s / 3, LONGEST_CALL_S)
        self._redis = Redis(
            host=address.host,
            port=address.port,
            db=address.database,
            socket_timeout=self._call_timeout_s,
            socket_connect_timeout=self._call_timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    async def aclose(self) -> None:
        """Close the connections; the lease stays as it is."""
        await self._redis.aclose()

    async def look(self) -> Held | None:
        """Who has the lease, None when it may be taken."""
        held, left_ms = await self._run(_LOOK)
        return _held(held, left_ms) if held else None

    async def take(self, *, least_term: int) -> int | Held:
        """The term (`least_term` or more) under which the lease is now ours, or who has it."""
        term, held, left_ms = await self._run(_TAKE, least_term)
        return int(term) if term else _held(held, left_ms)

    async def renew(self, term: int) -> bool:
        """Hold the lease for its whole time from now on; False when another has, or has had it."""
        return bool(await self._run(_RENEW, term))

    async def give_up(self) -> None:
        """Let others take it at once, if it is still ours."""
        await self._run(_GIVE_UP)

    async def _run(self, script: str, *numbers: int) -> Any:
        """The script's answer; LeaseUnreachable without one."""
        arguments: tuple[str | int, ...] = (self._holder, round(self._ttl_s * 1000), *numbers)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await self._redis.eval(script, 2, LEASE_KEY, TERM_KEY, *arguments)
        except TimeoutError:
            raise LeaseUnreachable(f"no answer within {self._call_timeout_s:.2g} s") from None
        except (RedisError, OSError) as error:
            raise LeaseUnreachable(" ".join(str(error).split())) from None


def _held(value: bytes, left_ms: int) -> Held:
    term, name, _ = value.decode().split(" ")
    return Held(holder=name, term=int(term), left_s=max(0, left_ms) / 1000)
