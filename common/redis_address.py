"""Where a Redis answers: the one reading of redis://host:port/db, for every service that uses one."""

from __future__ import annotations

from dataclasses import dataclass

SCHEME = "redis://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """Where a Redis answers, and which of its databases is ours."""

    host: str
    port: int
    database: int

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Of a redis://host:port/db that `common.config` has accepted; the database is 0 if left out."""
        address, _, database = url.removeprefix(SCHEME).partition("/")
        host, _, port = address.rpartition(":")
        return cls(host=host.strip("[]"), port=int(port), database=int(database or 0))
