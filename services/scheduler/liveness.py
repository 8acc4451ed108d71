"""Which worker lives are here: their heartbeat streams, how long they have been silent, what to tell them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from common.core.ids import BlockAttempt, WorkerId, WorkerLife
from common.errors import Reason, WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the next message down a heartbeat stream says (HeartbeatResponse)."""

    release_kv: tuple[BlockAttempt, ...] = ()
    drain: bool = False
    lost_peers: tuple[WorkerLife, ...] = ()


NO_ORDERS = Orders()


class HeartbeatStream:
    """The downward side of one Heartbeat call: orders are merged while the peer is slow, and sent once."""

    def __init__(self, life: WorkerLife, *, pending: Orders = NO_ORDERS) -> None:
        self.life = life
        self._pending = pending
        self._error: WireError | None = None
        self._closed = False
        self._wake = asyncio.Event()

    def order(
        self, *, release_kv: BlockAttempt | None = None, drain: bool = False, lost: WorkerLife | None = None
    ) -> None:
        """Add to what the worker is told next."""
        pending = self._pending
        self._pending = replace(
            pending,
            release_kv=pending.release_kv if release_kv is None else (*pending.release_kv, release_kv),
            drain=pending.drain or drain,
            lost_peers=pending.lost_peers if lost is None else (*pending.lost_peers, lost),
        )
        self._wake.set()

    def take(self) -> Orders:
        """The merged orders not yet sent; they count as sent now."""
        orders, self._pending = self._pending, NO_ORDERS
        return orders

    def close(self, error: WireError | None = None) -> None:
        """End the stream: with `error` (raised to the worker), or plainly."""
        self._closed, self._error = True, self._error or error
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Orders]:
        """Orders as they come, until `close`; raises its error."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._closed:
                if self._error is not None:
                    raise self._error
                return
            yield self.take()


class _Life:
    """A registered life: when it was last heard, its stream if one is open, and orders from before it opened."""

    __slots__ = ("draining", "heard_s", "stream")

    def __init__(self, life: WorkerLife, now: float) -> None:
        self.heard_s = now
        self.draining = False
        self.stream = HeartbeatStream(life)


class Liveness:
    """The registered lives. Does not decide: `silent` says who should be reported lost to the core.

    `timeout_s` is the longest silence of a life, counted from its registration. `silent` is asked every
    `look_interval_s`, and the time by which it is asked late counts as nobody's silence: this process stood still, and
    what was said meanwhile it is yet to hear.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.look_interval_s = timeout_s / 4
        self._looked_s = math.inf
        self.heard_s = -math.inf
        """When any life has last spoken, be it over by now; -inf before the first."""
        self._lives: dict[WorkerLife, _Life] = {}

    def register(self, life: WorkerLife, now: float) -> None:
        """A life says it is ready; idempotent while it lives."""
        if life not in self._lives:
            self._lives[life] = _Life(life, now)
        self.heard(life, now)

    def attach(self, life: WorkerLife, now: float) -> HeartbeatStream:
        """A heartbeat stream for this life; an older one of the same life ends. Raises STALE_INCARNATION."""
        known = self._lives.get(life)
        if known is None:
            raise stale(life)
        replaced = known.stream
        known.stream = HeartbeatStream(life, pending=replaced.take())
        known.stream.order(drain=known.draining)
        replaced.close()
        self.heard(life, now)
        return known.stream

    def is_current(self, stream: HeartbeatStream) -> bool:
        """Whether this stream still speaks for a living worker (it was not replaced, its life has not ended)."""
        known = self._lives.get(stream.life)
        return known is not None and known.stream is stream

    def is_alive(self, life: WorkerLife) -> bool:
        """Whether this life is registered and has not ended."""
        return life in self._lives

    def heard(self, life: WorkerLife, now: float) -> None:
        """The life has just spoken."""
        if life in self._lives:
            self._lives[life].heard_s = self.heard_s = now

    def silent(self, now: float) -> list[WorkerLife]:
        """Lives not heard for longer than the timeout, by id."""
        deaf_s = max(0.0, now - self._looked_s - self.look_interval_s)
        self._looked_s = now
        for known in self._lives.values():
            known.heard_s = min(now, known.heard_s + deaf_s)
        return sorted(life for life, known in self._lives.items() if now - known.heard_s > self.timeout_s)

    def life_of(self, worker_id: WorkerId) -> WorkerLife:
        """The living incarnation of a worker. Raises WORKER_NOT_FOUND."""
        found = next((life for life in self._lives if life.worker_id == worker_id), None)
        if found is None:
            known = ", ".join(sorted(life.worker_id for life in self._lives)) or "none"
            raise WireError(Reason.WORKER_NOT_FOUND, f"no worker {worker_id!r} is registered (registered: {known})")
        return found

    def mark_draining(self, life: WorkerLife, *, order: bool) -> bool:
        """Note that a life drains, and tell it so when it is an `order`. False when that was known already."""
        known = self._lives.get(life)
        if known is None or known.draining:
            return False
        known.draining = True
        if order:
            known.stream.order(drain=True)
        return True

    def release_kv(self, owner: WorkerLife, attempt: BlockAttempt) -> None:
        """Tell `owner` to free what it retains for `attempt`; nothing when that life is over."""
        if owner in self._lives:
            self._lives[owner].stream.order(release_kv=attempt)

    def end(self, life: WorkerLife) -> None:
        """A life is over: its stream ends with STALE_INCARNATION, and every other worker is told. Idempotent."""
        known = self._lives.pop(life, None)
        if known is None:
            return
        known.stream.close(stale(life))
        for other in self._lives.values():
            other.stream.order(lost=life)

    def close_all(self, error: WireError) -> None:
        """End every stream: the scheduler is stopping."""
        for known in self._lives.values():
            known.stream.close(error)


def stale(life: WorkerLife, *, least_incarnation: int | None = None, term: int | None = None) -> WireError:
    """What a life gets to hear that the scheduler takes for ended.

    `least_incarnation`: the smallest that would be taken, for a worker whose clock is behind its former lives. `term`:
    this scheduler's, for a life that has served another.
    """
    metadata: dict[str, str] = {"worker_id": life.worker_id}
    if least_incarnation is not None:
        metadata["least_incarnation"] = str(least_incarnation)
    if term is not None:
        metadata["term"] = str(term)
    text = f"worker {life.worker_id} life {life.incarnation} has ended; register a new incarnation"
    return WireError(Reason.STALE_INCARNATION, text, metadata=metadata)
