"""Which of several schedulers leads: the one whose health for the service has been SERVING since last.

One Health.Watch per address tells it at once. The scheduler that began to serve last is the one to follow: a former
leader that stands still, or is cut off, says nothing about having a successor. A follower that is told NOT_LEADER all
the same waits for the next word.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.backoff import Backoff
from common.rpc.channel import open_channel

SERVICE = "sangam.v1.SchedulerService"
"""Whose health tells who leads: followers watch it by this name, and schedulers serve it by it."""

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
"""Between two tries to watch a scheduler that does not answer."""

_SERVING = health_pb2.HealthCheckResponse.SERVING


class LeaderWatch:
    """Watches the schedulers at `addresses` (host:port) while `run` runs, over channels of its own. Event loop only."""

    def __init__(self, addresses: Sequence[str]) -> None:
        assert addresses, "no scheduler to watch"
        self.addresses = tuple(addresses)
        self._channels = {address: open_channel(address) for address in addresses}
        self._serving_since: dict[str, int] = {}
        self._turns = itertools.count()
        self._changed = asyncio.Condition()

    @property
    def leader(self) -> str | None:
        """Address of the scheduler to ask, None while none serves."""
        return max(self._serving_since, key=self._serving_since.__getitem__, default=None)

    @property
    def reign(self) -> int:
        """A number that is another one whenever a scheduler, be it the same, has begun to serve anew."""
        return max(self._serving_since.values(), default=-1)

    def channel(self, address: str) -> grpc.aio.Channel:
        """The channel to one of the addresses; open for as long as `run` runs."""
        return self._channels[address]

    async def leading(self) -> str:
        """The leader's address, as soon as there is one."""
        return await self.other_than(())

    async def other_than(self, known: Iterable[str]) -> str:
        """The leader's address, as soon as it is none of `known`."""
        known = frozenset(known)
        async with self._changed:
            await self._changed.wait_for(lambda: self.leader is not None and self.leader not in known)
            assert self.leader is not None, "just waited for"
            return self.leader

    async def rival_of(self, leader: str) -> str:
        """Address of another scheduler that says that it serves, as soon as there is one."""
        async with self._changed:
            rivals = await self._changed.wait_for(lambda: self._serving_since.keys() - {leader})
            return max(rivals, key=self._serving_since.__getitem__)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for address in self.addresses:
                    tasks.create_task(self._watch(address))
        finally:
            for channel in self._channels.values():
                await channel.close()

    async def _watch(self, address: str) -> None:
        stub = health_pb2_grpc.HealthStub(self._channels[address])
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S, jitter=True)
        while True:
            call = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            try:
                async for answer in call:
                    backoff.reset()
                    await self._note(address, answer.status == _SERVING)
            except grpc.aio.AioRpcError:
                pass  # it cannot be reached, or went away
            finally:
                call.cancel()
            await self._note(address, False)
            await backoff.wait()

    async def _note(self, address: str, serving: bool) -> None:
        async with self._changed:
            if serving:
                self._serving_since.setdefault(address, next(self._turns))
            else:
                self._serving_since.pop(address, None)
            self._changed.notify_all()
