"""The registry in this process' memory: `RegistryCore` under a clock. A restart forgets; owners reconcile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from common.clock import Clock
from common.core.ids import BlockAttempt, WorkerLife
from common.core.registry import KvOutcome, Reconciliation, RegistryCore
from common.core.registry_calls import Fence, Get, Publish, Reconcile, RegistryCall, Release, Renew, answer
from common.core.unowned import Unowned
from common.core.work import KvHandle
from common.story.writer import UNTOLD, Story


class MemoryStore:
    """A `KvStore`. Its calls never wait, so each is atomic in its event loop."""

    def __init__(self, clock: Clock, story: Story = UNTOLD) -> None:
        self._clock = clock
        self._core = RegistryCore()
        # The very calls that a replay of the story makes.
        self._answer = story.recorded(functools.partial(answer, self._core))

    def __len__(self) -> int:
        """Entries in memory, expired ones included until someone looks."""
        return len(self._core)

    async def publish(self, entries: Sequence[KvHandle]) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._answers(Publish(entries=tuple(entries)))

    async def get(self, attempts: Sequence[BlockAttempt]) -> list[KvHandle]:
        """See `KvStore`."""
        return self._answers(Get(attempts=tuple(attempts)))

    async def renew(self, owner: WorkerLife, attempts: Sequence[BlockAttempt], lease_s: float) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._answers(Renew(owner=owner, attempts=tuple(attempts), lease_s=lease_s))

    async def release(self, owner: WorkerLife, attempts: Sequence[BlockAttempt]) -> list[KvOutcome]:
        """See `KvStore`."""
        return self._answers(Release(owner=owner, attempts=tuple(attempts)))

    async def reconcile(self, owner: WorkerLife, held: Sequence[BlockAttempt]) -> Reconciliation:
        """See `KvStore`."""
        (difference,) = self._answers(Reconcile(owner=owner, held=tuple(held)))
        assert isinstance(difference, Reconciliation)
        return difference

    async def fence(self, life: WorkerLife) -> int:
        """See `KvStore`."""
        (removed_entries,) = self._answers(Fence(life=life))
        return int(removed_entries)

    def unowned(self) -> list[Unowned]:
        """See `RegistryCore.unowned`."""
        return self._core.unowned(self._clock.now())

    async def expire(self) -> None:
        """Forget entries whose lease is over. No part of the story: such an entry does not exist anyway."""
        self._core.expire(self._clock.now())

    def _answers(self, call: RegistryCall) -> list[Any]:
        """What the core answers now, of the type that `call` has; the story has both."""
        return self._answer(call, self._clock.now())
