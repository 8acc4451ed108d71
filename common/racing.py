"""Run several things until the first ends; the others are cancelled and have ended too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

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
