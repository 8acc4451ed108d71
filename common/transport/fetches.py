"""The fetches in flight of one transport, by the life they read from, so that a lost life ends them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from common.core.ids import WorkerLife
from common.core.work import KvTransfer
from common.errors import Reason, WireError
from common.racing import CutShort
from common.transport.base import Fetched
from common.transport.messages import Trailer

Received = tuple[int, Trailer]
"""Payload bytes of a whole read, and its trailer."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A whole read, and the path that it came by (`Fetched.path`)."""

    path: str
    received_bytes: int
    trailer: Trailer


@dataclass(frozen=True, slots=True, eq=False)
class _Fetch:
    owner: WorkerLife
    lost: asyncio.Future[WireError]
    ended: asyncio.Future[None]


class FetchTable:
    """Runs fetches so that `end` can end them from outside; after `close` every new one is refused."""

    def __init__(self) -> None:
        self._fetches: set[_Fetch] = set()
        self._closed = False

    async def run(self, life: WorkerLife, read: Coroutine[Any, Any, Delivery], timeout_s: float) -> Fetched:
        """What `read` brought and took. Raises what it raises, or `WireError` PEER_LOST when the life or time ends."""
        if self._closed:
            read.close()
            raise WireError(Reason.PEER_LOST, "the KV transport is closed")
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        fetch = _Fetch(life, loop.create_future(), loop.create_future())
        self._fetches.add(fetch)
        try:
            async with asyncio.timeout(timeout_s), CutShort(fetch.lost):
                delivery = await read
        except TimeoutError:
            raise WireError(Reason.PEER_LOST, f"the KV did not arrive within {timeout_s} s") from None
        finally:
            self._fetches.remove(fetch)
            fetch.ended.set_result(None)
        transfer_s = loop.time() - started_s
        transfer = KvTransfer(
            transfer_s=transfer_s,
            exposed_s=min(transfer_s, delivery.trailer.computed_ago_s),
            transfer_bytes=delivery.received_bytes,
        )
        return Fetched(transfer=transfer, trailer=delivery.trailer.data, path=delivery.path)

    async def end(self, life: WorkerLife | None, message: str) -> None:
        """End every fetch from `life` (None: all) with PEER_LOST; returns when they have ended."""
        ending = [fetch for fetch in self._fetches if life is None or fetch.owner == life]
        for fetch in ending:
            if not fetch.lost.done():
                fetch.lost.set_result(WireError(Reason.PEER_LOST, message))
        for fetch in ending:
            await asyncio.shield(fetch.ended)

    async def close(self) -> None:
        """Refuse new fetches and end the present ones."""
        self._closed = True
        await self.end(None, "the KV transport is closed")
