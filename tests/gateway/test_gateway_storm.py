"""Ten times more clients than there is room for: every one gets an honest answer, and nothing stays behind."""

from __future__ import annotations

import asyncio

import grpc

from common.errors import Reason
from tests.gateway.running_gateway import Reading
from tests.gateway.scripted_scheduler import finished, play, play_then_hang, queued, revealed_tokens, step

ROOM = 4
CLIENTS = 10 * ROOM
HANGING = play_then_hang(queued())
WHOLE = play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished())


async def test_who_has_no_room_is_told_when_to_come_back_and_who_has_is_answered_by_its_deadline(
    start_gateway, scheduler
):
    scheduler.script(*[HANGING] * ROOM, *[WHOLE] * ROOM)
    async with start_gateway(max_inflight_requests=ROOM) as client:
        readings = await asyncio.gather(*(client.generate(timeout_s=5.0) for _ in range(CLIENTS)))
        refused = [reading for reading in readings if reading.code is grpc.StatusCode.RESOURCE_EXHAUSTED]
        late = [reading for reading in readings if reading.code is grpc.StatusCode.DEADLINE_EXCEEDED]
        assert (len(refused), len(late)) == (CLIENTS - ROOM, ROOM)
        for reading in refused:
            assert reading.error is not None and reading.error.reason is Reason.QUEUE_FULL
            assert reading.error.retry_after_s is not None and reading.error.retry_after_s > 0
            assert reading.responses == []
        assert len(scheduler.requests) == ROOM
        # All the room is there again.
        after = await asyncio.gather(*(client.generate() for _ in range(ROOM)))
        assert [reading.text for reading in after] == ["abcd"] * ROOM


async def test_whoever_comes_back_when_told_to_is_served_in_the_end(start_gateway, scheduler):
    scheduler.script(*[WHOLE] * CLIENTS)

    async def persist(client) -> Reading:
        while True:
            reading: Reading = await client.generate()
            if reading.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                return reading
            assert reading.error is not None and reading.error.retry_after_s is not None
            await asyncio.sleep(min(0.2, reading.error.retry_after_s))

    async with asyncio.timeout(60), start_gateway(max_inflight_requests=ROOM) as client:
        readings = await asyncio.gather(*(persist(client) for _ in range(CLIENTS)))
    assert [reading.text for reading in readings] == ["abcd"] * CLIENTS
    assert len(scheduler.requests) == CLIENTS
