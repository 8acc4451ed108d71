"""The registry's rules as Lua, run inside Redis so that one call of one client is atomic for all of them.

The rules are those of `common.core.registry.RegistryCore`. Keys, all under one hash tag (`KEYS[1]` is the prefix):

    entry:<attempt>  hash worker, incarnation, handle; its TTL is the lease
    owner:<worker>   sorted set of that worker's attempts by lease end; may name entries that are gone or
                     went to another worker, misses none
    life:<worker>    hash newest, fenced: the incarnations seen and fenced

Incarnations are strings of 20 digits, because Lua's numbers hold 53 bits and an incarnation has 64. All times are
Redis' own: leases come and go as milliseconds from now.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

_PRELUDE = """
local prefix = KEYS[1]
-- A worker id is remembered for a week after its last call: no call of an earlier life is under way by then.
local LIFE_TTL_MS = 7 * 24 * 3600 * 1000
local INDEX_SLACK_MS = 1000

local function entry_key(attempt) return prefix .. 'entry:' .. attempt end
local function index_key(worker) return prefix .. 'owner:' .. worker end
local function life_key(worker) return prefix .. 'life:' .. worker end

local function owner_of(attempt)
  local owner = redis.call('HMGET', entry_key(attempt), 'worker', 'incarnation')
  return owner[1], owner[2]
end

local function owned(worker, incarnation, attempt)
  local its_worker, its_incarnation = owner_of(attempt)
  return its_worker == worker and its_incarnation == incarnation
end

local function drop(worker, attempt)
  redis.call('DEL', entry_key(attempt))
  redis.call('ZREM', index_key(worker), attempt)
end

local function set_lease(worker, attempt, lease_ms)
  local index, now = index_key(worker), redis.call('TIME')
  local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  redis.call('PEXPIRE', entry_key(attempt), lease_ms)
  redis.call('ZADD', index, now_ms + lease_ms, attempt)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now_ms - INDEX_SLACK_MS)
  if redis.call('PTTL', index) < lease_ms + INDEX_SLACK_MS then
    redis.call('PEXPIRE', index, lease_ms + INDEX_SLACK_MS)
  end
end

-- Calls visit(attempt, incarnation) for every entry of the worker.
local function each_entry(worker, visit)
  for _, attempt in ipairs(redis.call('ZRANGE', index_key(worker), 0, -1)) do
    local its_worker, incarnation = owner_of(attempt)
    if its_worker == worker then visit(attempt, incarnation) end
  end
end

-- Whether that life may speak; if it is the newest so far, its earlier lives' entries go.
local function admit(worker, incarnation)
  local key = life_key(worker)
  local life = redis.call('HMGET', key, 'newest', 'fenced')
  local newest, fenced = life[1], life[2]
  if (newest and incarnation < newest) or (fenced and incarnation <= fenced) then return false end
  if newest ~= incarnation then
    redis.call('HSET', key, 'newest', incarnation)
    each_entry(worker, function(attempt, its_incarnation)
      if its_incarnation < incarnation then drop(worker, attempt) end
    end)
  end
  redis.call('PEXPIRE', key, LIFE_TTL_MS)
  return true
end

local function stale(count)
  local outcomes = {}
  for index = 1, count do outcomes[index] = 'stale_incarnation' end
  return outcomes
end
"""

_PUBLISH = """
local function publish(worker, incarnation, attempt, handle, lease_ms)
  if not admit(worker, incarnation) then return 'stale_incarnation' end
  if owned(worker, incarnation, attempt) then
    lease_ms = math.max(lease_ms, redis.call('PTTL', entry_key(attempt)))
  end
  if lease_ms <= 0 then return 'not_found' end
  redis.call('HSET', entry_key(attempt), 'worker', worker, 'incarnation', incarnation, 'handle', handle)
  set_lease(worker, attempt, lease_ms)
  return 'ok'
end

local outcomes = {}
for at = 1, #ARGV, 5 do
  outcomes[#outcomes + 1] = publish(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4]))
end
return outcomes
"""

_GET = """
local found = {}
for _, attempt in ipairs(ARGV) do
  local handle, lease_ms = redis.call('HGET', entry_key(attempt), 'handle'), redis.call('PTTL', entry_key(attempt))
  if handle and lease_ms > 0 then
    found[#found + 1] = {handle, lease_ms}
  end
end
return found
"""

_RENEW = """
local worker, incarnation, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not admit(worker, incarnation) then return stale(#ARGV - 3) end
local outcomes = {}
for at = 4, #ARGV do
  local attempt = ARGV[at]
  if owned(worker, incarnation, attempt) then
    if lease_ms > redis.call('PTTL', entry_key(attempt)) then set_lease(worker, attempt, lease_ms) end
    outcomes[#outcomes + 1] = 'ok'
  else
    outcomes[#outcomes + 1] = 'not_found'
  end
end
return outcomes
"""

_RELEASE = """
local worker, incarnation = ARGV[1], ARGV[2]
if not admit(worker, incarnation) then return stale(#ARGV - 2) end
local outcomes = {}
for at = 3, #ARGV do
  if owned(worker, incarnation, ARGV[at]) then drop(worker, ARGV[at]) end
  outcomes[#outcomes + 1] = 'ok'
end
return outcomes
"""

# Answers {unknown, removed}.
_RECONCILE = """
local worker, incarnation = ARGV[1], ARGV[2]
local unknown_set, unknown, removed = {}, {}, {}
for at = 3, #ARGV do unknown_set[ARGV[at]] = true end
if admit(worker, incarnation) then
  each_entry(worker, function(attempt)
    if unknown_set[attempt] then
      unknown_set[attempt] = nil
    else
      drop(worker, attempt)
      removed[#removed + 1] = attempt
    end
  end)
end
for attempt in pairs(unknown_set) do unknown[#unknown + 1] = attempt end
return {unknown, removed}
"""

# Answers the number of entries removed.
_FENCE = """
local worker, incarnation = ARGV[1], ARGV[2]
local key, removed = life_key(worker), 0
local fenced = redis.call('HGET', key, 'fenced')
if not fenced or fenced < incarnation then redis.call('HSET', key, 'fenced', incarnation) end
redis.call('PEXPIRE', key, LIFE_TTL_MS)
each_entry(worker, function(attempt, its_incarnation)
  if its_incarnation <= incarnation then
    drop(worker, attempt)
    removed = removed + 1
  end
end)
return removed
"""

# Answers {name, why} for each entry of these that nobody will end in time. There is none, unless there is a bug: fences
# and newer lives drop the entries of an ended life, and find them by the owner's set.
_UNOWNED = """
local found = {}
local function why(attempt)
  local lease_ms = redis.call('PTTL', entry_key(attempt))
  if lease_ms == -2 then return nil end
  if lease_ms == -1 then return 'without a lease' end
  local worker, incarnation = owner_of(attempt)
  if not worker or not incarnation then return 'without an owner' end
  local life = redis.call('HMGET', life_key(worker), 'newest', 'fenced')
  local newest, fenced = life[1], life[2]
  if (newest and incarnation < newest) or (fenced and incarnation <= fenced) then return 'of a life that is over' end
  if not redis.call('ZSCORE', index_key(worker), attempt) then return 'not known by its owner' end
end
for _, attempt in ipairs(ARGV) do
  local reason = why(attempt)
  if reason then found[#found + 1] = {attempt, reason} end
end
return found
"""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script: what EVAL takes, and the name under which Redis keeps it for EVALSHA."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


PUBLISH = Script(_PRELUDE + _PUBLISH)
"""worker, incarnation, attempt, handle, lease_ms for each entry -> outcome of each."""
GET = Script(_PRELUDE + _GET)
"""attempts -> [handle, lease_ms] of those found, in order."""
RENEW = Script(_PRELUDE + _RENEW)
"""worker, incarnation, lease_ms, attempts -> outcome of each attempt."""
RELEASE = Script(_PRELUDE + _RELEASE)
"""worker, incarnation, attempts -> outcome of each attempt."""
RECONCILE = Script(_PRELUDE + _RECONCILE)
"""worker, incarnation, attempts held -> [unknown, removed], in no order."""
FENCE = Script(_PRELUDE + _FENCE)
"""worker, incarnation -> number of entries removed."""
UNOWNED = Script(_PRELUDE + _UNOWNED)
"""attempts -> [attempt, why] of those that are held for nobody; entries that are gone are passed over."""
