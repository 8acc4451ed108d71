"""What of a request shares a message to its client, and what never waits."""

from __future__ import annotations

import asyncio

import pytest

from common.core.effects import FailRequest, FinishRequest, PublishStep
from common.core.ids import RequestId
from common.core.work import FinishReason, StepDelta
from common.errors import Reason, WireError
from services.scheduler.outbox import RequestOutbox, RequestQueued, Shown

ID = RequestId("r")
QUEUED = RequestQueued(ahead=3)
PATIENCE_S = 20.0


def step(number: int) -> PublishStep:
    delta = StepDelta(step=number, positions=(number,), token_ids=(7,), confidences=(0.5,))
    return PublishStep(request_id=ID, block=0, step=delta)


def finish() -> FinishRequest:
    return FinishRequest(request_id=ID, finish=FinishReason.LENGTH)


def outbox() -> RequestOutbox:
    return RequestOutbox(ID, ahead=3)


async def rest_of(box: RequestOutbox) -> list[list[Shown]]:
    async with asyncio.timeout(PATIENCE_S):
        return [batch async for batch in box.batches()]


async def test_the_acceptance_goes_with_first_tokens_that_are_there() -> None:
    box = outbox()
    box.put(step(0))
    box.put(finish())
    assert await rest_of(box) == [[QUEUED, step(0), finish()]]


async def test_the_acceptance_of_a_request_that_waits_is_told_by_itself_and_its_first_tokens_at_once() -> None:
    box = outbox()
    batches = box.batches()
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == [QUEUED]
    first = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    box.put(step(0))
    # Two turns of the loop: no timer has rung.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert first.done() and first.result() == [step(0)]


async def test_tokens_that_come_within_the_interval_leave_together_after_it() -> None:
    box = outbox()
    batches = box.batches()
    box.put(step(0))
    assert await anext(batches) == [QUEUED, step(0)]
    box.put(step(1))
    box.put(step(2))
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == [step(1), step(2)]


async def test_the_end_takes_along_what_waits_and_waits_itself_for_nothing() -> None:
    box = outbox()
    batches = box.batches()
    box.put(step(0))
    await anext(batches)
    box.put(step(1))
    last = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    box.put(finish())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert last.done() and last.result() == [step(1), finish()]
    assert [batch async for batch in batches] == []


@pytest.mark.parametrize("core_says", [True, False])
async def test_a_failure_comes_after_what_was_said_before(core_says: bool) -> None:
    box = outbox()
    batches = box.batches()
    box.put(step(0))
    await anext(batches)
    box.put(step(1))
    if core_says:
        box.put(FailRequest(request_id=ID, reason=Reason.DEADLINE_EXCEEDED, message="late", field="", story=""))
    else:
        box.fail(WireError(Reason.DEADLINE_EXCEEDED, "late"))
    assert await anext(batches) == [step(1)]
    with pytest.raises(WireError) as caught:
        await anext(batches)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
