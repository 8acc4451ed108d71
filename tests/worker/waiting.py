"""Waiting for what must become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 20.0
"""Longest wait for something that must happen; only a broken test ever waits this long."""


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; raises TimeoutError after `PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)
