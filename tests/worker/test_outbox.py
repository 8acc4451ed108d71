"""What a call's outbox puts into one message, and what it never holds back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from common.core.params import ConfidenceQuota
from common.errors import Reason, WireError
from common.worker.calls import Answer, CallOutbox, CallTable
from sangam.v1 import decode_pb2, types_pb2
from tests.engine.runs import request
from tests.worker.harness import block_work
from tests.worker.waiting import PATIENCE_S

WORK = block_work(request(strategy=ConfidenceQuota(4)))


def step(number: int) -> decode_pb2.DecodeEvent:
    return decode_pb2.DecodeEvent(step=types_pb2.StepDelta(step=number))


def received() -> decode_pb2.DecodeEvent:
    return decode_pb2.DecodeEvent(kv_received=decode_pb2.KvReceived(transfer_bytes=1))


async def rest_of(batches: AsyncIterator[Sequence[Answer]]) -> list[list[Answer]]:
    return [list(batch) async for batch in batches]


async def test_the_first_answer_leaves_alone_and_the_end_takes_everything_along() -> None:
    outbox = CallOutbox(WORK)
    batches = outbox.batches()
    outbox.send(step(0))
    assert await anext(batches) == [step(0)]
    for number in (1, 2, 3):
        outbox.send(step(number))
    outbox.finish()
    assert await rest_of(batches) == [[step(1), step(2), step(3)]]


async def test_what_comes_within_the_interval_leaves_together_after_it() -> None:
    outbox = CallOutbox(WORK)
    batches = outbox.batches()
    outbox.send(step(0))
    await anext(batches)
    outbox.send(step(1))
    outbox.send(step(2))
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == [step(1), step(2)]
    await batches.aclose()


async def test_what_can_wait_goes_with_the_next_answer_that_cannot() -> None:
    outbox = CallOutbox(WORK)
    batches = outbox.batches()
    outbox.send(received(), can_wait=True)
    outbox.send(step(1))
    assert await anext(batches) == [received(), step(1)]
    await batches.aclose()


async def test_what_can_wait_leaves_by_itself_when_nothing_follows() -> None:
    outbox = CallOutbox(WORK)
    batches = outbox.batches()
    outbox.send(received(), can_wait=True)
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == [received()]
    # It was told once, and what comes next keeps the interval.
    outbox.send(step(1))
    outbox.finish()
    assert await rest_of(batches) == [[step(1)]]


async def test_an_error_comes_after_what_was_said_before() -> None:
    outbox = CallOutbox(WORK)
    outbox.send(step(0))
    outbox.fail(WireError(Reason.PEER_LOST, "gone"))
    batches = outbox.batches()
    assert await anext(batches) == [step(0)]
    with pytest.raises(WireError) as caught:
        await anext(batches)
    assert caught.value.reason is Reason.PEER_LOST


async def test_a_call_that_was_handed_back_hears_no_more() -> None:
    calls = CallTable()
    with calls.open(WORK) as outbox:
        calls.fail_all(Reason.WORKER_DRAINING, "ends")
        outbox.send(step(0))
        outbox.finish()
        with pytest.raises(WireError) as caught:
            await rest_of(outbox.batches())
    assert caught.value.reason is Reason.WORKER_DRAINING


async def test_an_answer_after_the_end_is_a_bug() -> None:
    outbox = CallOutbox(WORK)
    outbox.finish()
    with pytest.raises(AssertionError):
        outbox.send(step(0))
