"""How a call that broke is made again: under the same id, from what is here already, while a gateway belongs there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from common.backoff import Backoff
from common.errors import Reason, WireError

_ID_BYTES = 16
_NOTICE_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """`patience_s`: longest time without a word from the gateway, in seconds. `detach_grace_s`: how long the gateway is
    asked to go on meanwhile, in seconds. `expected`: a gateway is known to belong there, even if none answers at first.
    """

    patience_s: float = 60.0
    detach_grace_s: float = 30.0
    expected: bool = False


class Reconnection:
    """The pauses of one request at the gateway of `channel`; `heard` whenever the gateway said something.

    `on_notice` gets a line for the user when it takes a while, and when not even the beginning was heard.
    """

    def __init__(self, policy: Reconnect, channel: grpc.aio.Channel, on_notice: Callable[[str], None]) -> None:
        self._policy = policy
        self._channel = channel
        self._on_notice = on_notice
        self._belongs_there = policy.expected
        self._begun = False
        self._backoff = Backoff(first_s=0.1, longest_s=1.0, jitter=True)
        self._heard_at_s = asyncio.get_running_loop().time()
        self._noticed = False

    def heard(self) -> None:
        """The gateway answers."""
        self._begun = True
        self._heard_at_s = asyncio.get_running_loop().time()
        self._backoff.reset()
        self._noticed = False

    async def look(self, *, within_s: float | None) -> bool:
        """Whether a gateway belongs there: one is expected, or something speaks gRPC there or did so before.

        Raises `WireError` DEADLINE_EXCEEDED when that cannot be told within `within_s` seconds (None: no limit).
        """
        if not self._belongs_there:
            try:
                async with asyncio.timeout(within_s):
                    self._belongs_there = await _connects(self._channel)
            except TimeoutError:
                raise WireError(Reason.DEADLINE_EXCEEDED, "the deadline passed") from None
        return self._belongs_there

    async def pause(self, error: WireError) -> None:
        """Wait before the next try. Raises `error`, the reason for it, when there is none or patience is at its end."""
        silent_s = asyncio.get_running_loop().time() - self._heard_at_s
        if silent_s > self._policy.patience_s or not self._belongs_there:
            raise error
        if (silent_s > _NOTICE_AFTER_S or not self._begun) and not self._noticed:
            self._noticed = True
            self._on_notice(f"{error}; trying again for {self._policy.patience_s:.0f} s")
        await self._backoff.wait()


async def _connects(channel: grpc.aio.Channel) -> bool:
    """Whether the channel's first try to connect succeeds."""
    ends = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
    while (state := channel.get_state(try_to_connect=True)) not in ends:
        await channel.wait_for_state_change(state)
    return state is grpc.ChannelConnectivity.READY


def new_request_id() -> str:
    """An id that nobody can guess (128 random bits)."""
    return f"cli-{secrets.token_hex(_ID_BYTES)}"
