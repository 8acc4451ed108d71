"""What this life retains for decode workers, as handles; the core decides, this only remembers."""

from __future__ import annotations

import asyncio

from common.core.ids import BlockAttempt
from common.core.work import KvHandle


class RetainedKv:
    """Handles by attempt. Event loop only."""

    def __init__(self) -> None:
        self._handles: dict[BlockAttempt, KvHandle] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, handle: KvHandle) -> None:
        """Remember what is retained now."""
        self._handles[handle.attempt] = handle
        self._empty.clear()

    def remove(self, attempt: BlockAttempt) -> KvHandle:
        """Forget it; it is retained no more."""
        handle = self._handles.pop(attempt)
        if not self._handles:
            self._empty.set()
        return handle

    def find(self, attempt: BlockAttempt) -> KvHandle | None:
        """The handle of that attempt, or None."""
        return self._handles.get(attempt)

    @property
    def attempts(self) -> frozenset[BlockAttempt]:
        """Attempts whose K/V is retained."""
        return frozenset(self._handles)

    def handles(self) -> tuple[KvHandle, ...]:
        """Everything retained."""
        return tuple(self._handles.values())

    async def wait_empty(self) -> None:
        """Return when nothing is retained."""
        await self._empty.wait()
