"""Growing pauses between tries at something that may be down for long."""

from __future__ import annotations

import asyncio
import random

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class Backoff:
    """Doubles from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S`, shortened at random by up to a half.

    The randomness keeps a fleet of workers from knocking in step.
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S

    def reset(self) -> None:
        """Start from the first pause again: the last try worked."""
        self._pause_s = FIRST_PAUSE_S

    async def wait(self) -> None:
        """Sleep for this turn's pause and lengthen the next."""
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        await asyncio.sleep(pause_s)
