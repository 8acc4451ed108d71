"""What is left of a caller's deadline, as a handler sees it and passes it on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from common.errors import Reason
from common.rpc.deadline import child_timeout_s, remaining_s
from common.rpc.status import wire_error
from tests.rpc.scripted import Loopback, ScriptedGateway


async def seen_by_handler(read: Callable[[Any], float | None], **options: Any) -> Any:
    seen = []

    async def unary(context):
        seen.append(read(context))

    async with Loopback(ScriptedGateway(unary=unary)) as loopback:
        await loopback.get_model(**options)
    return seen[0]


async def test_no_deadline_stays_none():
    assert await seen_by_handler(remaining_s) is None
    assert await seen_by_handler(child_timeout_s) is None


class Left:
    """A context whose caller leaves this many seconds. (Real ones move on between two looks.)"""

    def __init__(self, left_s: float | None) -> None:
        self.left_s = left_s

    def time_remaining(self) -> float | None:
        return self.left_s


@pytest.mark.parametrize(
    ("left_s", "remaining", "child"),
    [(None, None, None), (10.0, 10.0, 8.0), (2.0, 2.0, 0.0), (1.0, 1.0, 0.0), (-3.0, 0.0, 0.0), (1e10, None, None)],
)
def test_the_margin_is_taken_off_and_nothing_goes_below_zero(left_s, remaining, child):
    assert remaining_s(Left(left_s)) == remaining
    assert child_timeout_s(Left(left_s), margin_s=2.0) == child


async def test_a_handler_sees_its_callers_deadline():
    left_s = await seen_by_handler(remaining_s, timeout=100)
    assert 40 < left_s < 102  # gRPC rounds long timeouts up by about a percent


async def test_a_margin_larger_than_what_is_left_gives_zero():
    assert await seen_by_handler(lambda context: child_timeout_s(context, margin_s=60), timeout=30) == 0


async def test_each_hop_has_less_than_the_one_before():
    seen: list[Any] = []

    async def back(context):
        seen.append(remaining_s(context))

    async with Loopback(ScriptedGateway(unary=back)) as second:

        async def front(context):
            seen.append(remaining_s(context))
            await second.get_model(timeout=child_timeout_s(context, margin_s=20))

        async with Loopback(ScriptedGateway(unary=front)) as first:
            await first.get_model(timeout=60)
    assert seen[1] < seen[0] - 10


async def test_a_passed_deadline_cancels_the_handler():
    ended = asyncio.Event()

    async def unary(context):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Loopback(ScriptedGateway(unary=unary)) as loopback, asyncio.timeout(20):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loopback.get_model(timeout=0.1)
        await ended.wait()
    assert wire_error(caught.value).reason is Reason.DEADLINE_EXCEEDED
