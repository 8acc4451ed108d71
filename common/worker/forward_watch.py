"""Notices a forward that never ends: a hung kernel holds its pages for ever and cannot be stopped from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from common.errors import SangamError

LOOKS_PER_LIMIT = 8
"""How often the watch looks within the time it allows: a stuck forward is found at most an eighth late."""


class ForwardStuck(SangamError):
    """A forward does not end. Its thread cannot be joined: the process has to leave by `leave_process`."""


class Forwards(Protocol):
    """What the watch looks at."""

    @property
    def running_since_s(self) -> float | None:
        """When the running forward began, on `time.monotonic`; None while none runs."""
        ...


async def watch_forwards(forwards: Forwards, *, limit_s: float, on_stuck: Callable[[ForwardStuck], None]) -> None:
    """Call `on_stuck`, once, when a forward has run for longer than `limit_s` seconds, and return; 0: never look."""
    while limit_s > 0:
        await asyncio.sleep(limit_s / LOOKS_PER_LIMIT)
        since_s = forwards.running_since_s
        if since_s is not None and time.monotonic() - since_s > limit_s:
            on_stuck(ForwardStuck(f"a forward has run for more than {limit_s:g} s"))
            return
