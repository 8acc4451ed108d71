"""How a call that broke in the middle of its answer is taken up again: under the same id, from what is here already."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from common.backoff import Backoff
from common.errors import WireError

_ID_BYTES = 16
_NOTICE_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """`patience_s`: longest time without a word from the gateway, in seconds. `detach_grace_s`: how long the gateway is
    asked to go on meanwhile, in seconds.
    """

    patience_s: float = 60.0
    detach_grace_s: float = 30.0


class Reconnection:
    """The pauses of one request; `heard` whenever the gateway said something.

    `on_notice` gets a line for the user when it takes a while.
    """

    def __init__(self, policy: Reconnect, on_notice: Callable[[str], None]) -> None:
        self._policy = policy
        self._on_notice = on_notice
        self._backoff = Backoff(first_s=0.1, longest_s=1.0, jitter=True)
        self._heard_at_s = asyncio.get_running_loop().time()
        self._noticed = False

    def heard(self) -> None:
        """The gateway answers."""
        self._heard_at_s = asyncio.get_running_loop().time()
        self._backoff.reset()
        self._noticed = False

    async def pause(self, error: WireError) -> None:
        """Wait before the next try. Raises `error`, the reason for it, when patience is at its end."""
        silent_s = asyncio.get_running_loop().time() - self._heard_at_s
        if silent_s > self._policy.patience_s:
            raise error
        if silent_s > _NOTICE_AFTER_S and not self._noticed:
            self._noticed = True
            self._on_notice(f"{error}; trying again for {self._policy.patience_s:.0f} s")
        await self._backoff.wait()


def new_request_id() -> str:
    """An id that nobody can guess (128 random bits)."""
    return f"cli-{secrets.token_hex(_ID_BYTES)}"
