"""Run several things until the first ends; the others are cancelled and have ended too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


async def race(*contenders: Coroutine[Any, Any, T]) -> T:
    """Result (or exception) of whichever ends first; ties go to the earlier argument.

    When this returns, raises or is cancelled, no contender is running.
    """
    tasks = [asyncio.ensure_future(contender) for contender in contenders]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await outlive(tasks)
    return winner.result()


class CutShort:
    """`async with CutShort(*signals)`: a block that ends when a signal comes, with the exception that is its result.

    The block is cancelled and has ended by then, as in `asyncio.timeout`. What a task of its own costs in `race` it
    spares. The signals stay the caller's, they are neither cancelled nor consumed; each block is entered once.
    """

    def __init__(self, *signals: asyncio.Future[Any]) -> None:
        self._signals = signals
        self._task: asyncio.Task[Any] | None = None
        self._cancels_before = 0
        self._came: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None, "awaited outside of a task"
        self._cancels_before = self._task.cancelling()
        for signal in self._signals:
            signal.add_done_callback(self._on_signal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        for signal in self._signals:
            signal.remove_done_callback(self._on_signal)
        if self._came is None:
            return
        # Whoever else has cancelled this task meanwhile is the one to be obeyed.
        if self._task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
            raise self._came.result() from None

    def _on_signal(self, signal: asyncio.Future[Any]) -> None:
        if self._came is None:
            assert self._task is not None
            self._came = signal
            self._task.cancel()


async def outlive(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Return when all of `futures` have ended; a cancellation meanwhile is raised only then. Outcomes are ignored."""
    futures = list(futures)
    cancelled: asyncio.CancelledError | None = None
    while pending := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    for future in futures:
        if not future.cancelled():
            future.exception()
    if cancelled is not None:
        raise cancelled
