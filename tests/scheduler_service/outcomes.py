"""What a Schedule call told: its events, the tokens they reveal, or the error that ended it."""

from __future__ import annotations

from collections.abc import AsyncIterable

import grpc
import pytest

from common.errors import WireError
from common.rpc.status import wire_error
from sangam.v1 import scheduler_pb2

Event = scheduler_pb2.ScheduleEvent
Responses = AsyncIterable[scheduler_pb2.ScheduleResponse]


async def collect(call: Responses) -> list[Event]:
    return [event async for response in call for event in response.events]


def revealed(events: list[Event]) -> dict[int, int]:
    """Token by position; fails when a position comes twice."""
    pairs = [
        pair
        for event in events
        if event.WhichOneof("event") == "step"
        for pair in zip(event.step.delta.positions, event.step.delta.token_ids, strict=True)
    ]
    assert len(dict(pairs)) == len(pairs), "a position was told twice"
    return dict(pairs)


async def failure_of(call: Responses) -> WireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return wire_error(caught.value)
