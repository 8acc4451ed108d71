"""Requests that wait for a worker that is not there: their clients are told, and they run when it comes."""

from __future__ import annotations

import asyncio

from common.core.ids import RequestId, Role
from sangam.v1 import types_pb2
from services.scheduler.wait_notices import NOTICE_AFTER_S, WaitNotices
from tests.scheduler_service.conftest import AddWorker, StartScheduler, make_request
from tests.scheduler_service.outcomes import revealed

PATIENCE_S = 60.0


async def test_a_client_is_told_that_nobody_is_there_and_served_when_somebody_is(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    # Half of a pair serves nothing.
    await add_worker(scheduler, "p", Role.PREFILL)
    responses = aiter(scheduler.stub.Schedule(make_request()))
    async with asyncio.timeout(PATIENCE_S):
        first, second = await anext(responses), await anext(responses)
        assert first.events[0].HasField("queued")
        assert [event.waiting.reason for event in second.events] == [types_pb2.WAIT_REASON_NO_WORKER]
        await add_worker(scheduler, "d", Role.DECODE)
        rest = [event async for response in responses for event in response.events]
    assert len(revealed(rest)) == 20
    assert not any(event.HasField("waiting") for event in rest)


def test_each_wait_is_told_once_and_only_when_it_lasts() -> None:
    notices, one, two = WaitNotices(), RequestId("one"), RequestId("two")
    assert notices.due([one], 0.0) == []
    assert notices.due([one, two], NOTICE_AFTER_S / 2) == []
    assert notices.due([one, two], NOTICE_AFTER_S) == [one]
    assert notices.due([two], NOTICE_AFTER_S * 1.5) == [two]
    assert notices.due([one, two], NOTICE_AFTER_S * 2) == []
    # A wait of its own, later.
    assert notices.due([one, two], NOTICE_AFTER_S * 3) == [one]
