"""Several gateways that run one request: it runs once, all see the same tokens, and it ends with the last of them."""

from __future__ import annotations

import asyncio
from typing import Any

from common.core.ids import Role
from common.errors import Reason, WireError
from sangam.v1 import scheduler_pb2
from tests.scheduler_service.conftest import AddWorker, Scheduler, StartScheduler, make_request
from tests.scheduler_service.outcomes import collect, failure_of, revealed
from tests.scheduler_service.scripted import ScriptedWorker, token_at

ALL = {position: token_at(position) for position in range(20)}
FIRST = {0: token_at(0)}


async def held_in_decode(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> tuple[Scheduler, ScriptedWorker, Any]:
    """A scheduler, its decode worker, and the call of a request whose first token is there and whose next one waits."""
    scheduler = await start_scheduler()
    await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    decode.gate.clear()
    call = scheduler.stub.Schedule(make_request())
    assert revealed(await first_of(call)) == FIRST
    return scheduler, decode, call


async def first_of(call: Any) -> list[scheduler_pb2.ScheduleEvent]:
    """Events up to the first tokens."""
    events: list[scheduler_pb2.ScheduleEvent] = []
    while not any(event.HasField("step") for event in events):
        events += (await anext(aiter(call))).events
    return events


async def test_who_comes_later_gets_all_tokens_so_far_and_then_the_same(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler, decode, first = await held_in_decode(start_scheduler, add_worker)
    second = scheduler.stub.Schedule(make_request())
    beginning = await first_of(second)
    assert beginning[0].HasField("queued")
    assert revealed(beginning) == FIRST
    decode.gate.set()
    rests = await asyncio.gather(collect(first), collect(second))
    assert [FIRST | revealed(rest) for rest in rests] == [ALL, ALL]
    assert all(rest[-1].HasField("finished") for rest in rests)
    # Nothing ran twice.
    assert [work.attempt.block for work in decode.works] == [0, 1, 2]
    await scheduler.until_idle()


async def test_the_request_goes_on_until_the_last_one_leaves(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler, decode, first = await held_in_decode(start_scheduler, add_worker)
    second, third = (scheduler.stub.Schedule(make_request()) for _ in range(2))
    await first_of(second)
    await first_of(third)
    first.cancel()
    third.cancel()
    await asyncio.wait([asyncio.ensure_future(call.code()) for call in (first, third)])
    assert (await scheduler.state()).running_requests == 1
    decode.gate.set()
    assert FIRST | revealed(await collect(second)) == ALL
    await scheduler.until_idle()


async def test_it_is_cancelled_when_all_have_left(start_scheduler: StartScheduler, add_worker: AddWorker) -> None:
    scheduler, decode, first = await held_in_decode(start_scheduler, add_worker)
    second = scheduler.stub.Schedule(make_request())
    await first_of(second)
    first.cancel()
    second.cancel()
    await scheduler.until_idle()
    decode.gate.set()


async def test_cancel_ends_it_for_all_and_frees_everything(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler, decode, first = await held_in_decode(start_scheduler, add_worker)
    second = scheduler.stub.Schedule(make_request())
    await first_of(second)
    cancel = scheduler_pb2.CancelScheduleRequest(request_id=make_request().request_id)
    assert (await scheduler.stub.CancelSchedule(cancel)).was_running
    failures = await asyncio.gather(failure_of(first), failure_of(second))
    assert {failure.reason for failure in failures} == {Reason.CANCELLED}
    await scheduler.until_idle()
    assert not (await scheduler.stub.CancelSchedule(cancel)).was_running
    decode.gate.set()


async def test_a_failure_is_told_to_all(start_scheduler: StartScheduler, add_worker: AddWorker) -> None:
    scheduler, decode, first = await held_in_decode(start_scheduler, add_worker)
    second = scheduler.stub.Schedule(make_request())
    await first_of(second)
    decode.refusals = [WireError(Reason.TOO_LONG, "not here")]
    decode.gate.set()
    failures = await asyncio.gather(failure_of(first), failure_of(second))
    assert {failure.reason for failure in failures} == {Reason.TOO_LONG}
    await scheduler.until_idle()
