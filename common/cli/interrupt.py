"""Runs a command's coroutine so that Ctrl-C, SIGTERM or a closed terminal end it in order, without a traceback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked the command to end, and it has ended."""


def run_interruptible(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in a fresh event loop; a signal cancels it once. Raises Interrupted when it ended that way."""

    async def guarded() -> T:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise Interrupted from None

    return asyncio.run(guarded())
