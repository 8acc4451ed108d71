"""The registry in this process' memory: `RegistryCore` under a clock. A restart forgets; owners reconcile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from common.clock import Clock
from common.core.ids import BlockAttempt, WorkerLife
from common.core.registry import KvOutcome, Reconciliation, RegistryCore
from common.core.registry_calls import Fence, Get, Publish, Reconcile, RegistryCall, Release, Renew
from common.core.unowned import Unowned
from common.core.work import KvHandle
from common.story.writer import UNTOLD, Story

T = TypeVar("T")


class MemoryStore:
    """A `KvStore`. Its calls never wait, so each is atomic in its event loop."""

    def __init__(self, clock: Clock, story: Story = UNTOLD) -> None:
        self._clock = clock
        self._core = RegistryCore()
        self._story = story

    def __len__(self) -> int:
        """Entries in memory, expired ones included until someone looks."""
        return len(self._core)

    async def publish(self, entries: Sequence[KvHandle]) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._told(Publish(entries=tuple(entries)), lambda now: self._core.publish(entries, now))

    async def get(self, attempts: Sequence[BlockAttempt]) -> list[KvHandle]:
        """See `KvStore`."""
        return self._told(Get(attempts=tuple(attempts)), lambda now: self._core.get(attempts, now))

    async def renew(self, owner: WorkerLife, attempts: Sequence[BlockAttempt], lease_s: float) -> list[KvOutcome]:
        """See `KvStore`."""
        call = Renew(owner=owner, attempts=tuple(attempts), lease_s=lease_s)
        return self._told(call, lambda now: self._core.renew(owner, attempts, lease_s, now))

    async def release(self, owner: WorkerLife, attempts: Sequence[BlockAttempt]) -> list[KvOutcome]:
        """See `KvStore`."""
        call = Release(owner=owner, attempts=tuple(attempts))
        return self._told(call, lambda now: self._core.release(owner, attempts, now))

    async def reconcile(self, owner: WorkerLife, held: Sequence[BlockAttempt]) -> Reconciliation:
        """See `KvStore`."""
        call = Reconcile(owner=owner, held=tuple(held))
        return self._told(call, lambda now: [self._core.reconcile(owner, held, now)])[0]

    async def fence(self, life: WorkerLife) -> int:
        """See `KvStore`."""

        def removed(now: float) -> list[int]:
            self._core.expire(now)
            return [self._core.fence(life)]

        return self._told(Fence(life=life), removed)[0]

    def unowned(self) -> list[Unowned]:
        """See `RegistryCore.unowned`."""
        return self._core.unowned(self._clock.now())

    async def expire(self) -> None:
        """Forget entries whose lease is over. No part of the story: such an entry does not exist anyway."""
        self._core.expire(self._clock.now())

    def _told(self, call: RegistryCall, act: Callable[[float], list[T]]) -> list[T]:
        """What the core answers to `call`, which `act` makes; the story has both."""
        return self._story.recorded(lambda _, now: act(now))(call, self._clock.now())
