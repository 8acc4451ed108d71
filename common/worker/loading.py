"""Long work before a worker serves, off the event loop, so that an order to stop is heard meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def load_unless_stopped(load: Callable[[], T], stop: asyncio.Event) -> T | None:
    """Return what `load` returns, or None as soon as `stop` is set; raises what `load` raises.

    `load` runs on a daemon thread of its own. It cannot be ended: after None it still runs, and the process should
    leave by `leave_process`.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not outcome.done():
            set_outcome()

    def post(set_outcome: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(settle, set_outcome)
        except RuntimeError:
            # The loop has closed: nobody waits for the outcome any more.
            assert loop.is_closed()

    def run() -> None:
        try:
            loaded = load()
        except Exception as error:
            failure = error
            post(lambda: outcome.set_exception(failure))
        else:
            post(lambda: outcome.set_result(loaded))

    threading.Thread(target=run, name="load", daemon=True).start()
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((outcome, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if stop.is_set():
        outcome.cancel()
        return None
    return outcome.result()
