"""Every bad input is refused with its field and code before the scheduler hears of it."""

from __future__ import annotations

import grpc
import pytest

from common.errors import InvalidRequest, Reason, TooLong
from sangam.v1 import inference_pb2, types_pb2
from tests.gateway.running_gateway import MASK, MAX_CANVAS_TOKENS
from tests.gateway.scripted_scheduler import finished, play, play_then_raise, queued, revealed_tokens, step


def sampling(**fields) -> types_pb2.SamplingParams:
    return types_pb2.SamplingParams(**fields)


NAN, INFINITY = float("nan"), float("inf")
BAD_INPUTS = {
    "empty text": ({"text": ""}, "prompt", Reason.INVALID_PROMPT),
    "empty ids": ({"token_ids": []}, "token_ids", Reason.INVALID_PROMPT),
    "id below the vocabulary": ({"token_ids": [5, -1]}, "token_ids", Reason.INVALID_PROMPT),
    "id above the vocabulary": ({"token_ids": [264, 5]}, "token_ids", Reason.INVALID_PROMPT),
    "id far above": ({"token_ids": [2**62]}, "token_ids", Reason.INVALID_PROMPT),
    "mask id": ({"token_ids": [5, MASK, 6]}, "token_ids", Reason.INVALID_PROMPT),
    "no tokens wanted": ({"max_tokens": 0}, "max_tokens", Reason.BAD_SAMPLING_PARAMS),
    "negative max_tokens": ({"max_tokens": -1}, "max_tokens", Reason.BAD_SAMPLING_PARAMS),
    "canvas one block too long": ({"max_tokens": 121}, "max_tokens", Reason.TOO_LONG),
    "max_tokens huge": ({"max_tokens": 2**63 - 1}, "max_tokens", Reason.TOO_LONG),
    "prompt as long as the canvas": ({"text": "x" * MAX_CANVAS_TOKENS}, "prompt", Reason.TOO_LONG),
    "prompt of ids too long": ({"token_ids": [1] * 500}, "token_ids", Reason.TOO_LONG),
    "long text off the loop": ({"text": "x" * 5000}, "prompt", Reason.TOO_LONG),
    "negative block": ({"block_length_tokens": -4}, "block_length_tokens", Reason.BAD_SAMPLING_PARAMS),
    "block over the canvas": ({"block_length_tokens": 129}, "block_length_tokens", Reason.TOO_LONG),
    "negative temperature": ({"sampling": sampling(temperature=-0.1)}, "temperature", Reason.BAD_SAMPLING_PARAMS),
    "NaN temperature": ({"sampling": sampling(temperature=NAN)}, "temperature", Reason.BAD_SAMPLING_PARAMS),
    "infinite temperature": ({"sampling": sampling(temperature=INFINITY)}, "temperature", Reason.BAD_SAMPLING_PARAMS),
    "threshold above 1": (
        {"sampling": sampling(confidence_threshold=1.01)},
        "confidence_threshold",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "threshold below 0": (
        {"sampling": sampling(confidence_threshold=-0.01)},
        "confidence_threshold",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "infinite threshold": (
        {"sampling": sampling(confidence_threshold=INFINITY)},
        "confidence_threshold",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "threshold minus infinity": (
        {"sampling": sampling(confidence_threshold=-INFINITY)},
        "confidence_threshold",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "NaN threshold": (
        {"sampling": sampling(confidence_threshold=NAN)},
        "confidence_threshold",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "quota 0": ({"sampling": sampling(confidence_quota=0)}, "confidence_quota", Reason.BAD_SAMPLING_PARAMS),
    "quota negative": ({"sampling": sampling(confidence_quota=-2)}, "confidence_quota", Reason.BAD_SAMPLING_PARAMS),
    "factor 0": ({"sampling": sampling(confidence_dynamic=0.0)}, "confidence_dynamic", Reason.BAD_SAMPLING_PARAMS),
    "factor negative": (
        {"sampling": sampling(confidence_dynamic=-1.0)},
        "confidence_dynamic",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "factor infinite": (
        {"sampling": sampling(confidence_dynamic=INFINITY)},
        "confidence_dynamic",
        Reason.BAD_SAMPLING_PARAMS,
    ),
    "factor NaN": ({"sampling": sampling(confidence_dynamic=NAN)}, "confidence_dynamic", Reason.BAD_SAMPLING_PARAMS),
    "unknown cache mode": ({"cache_mode": 77}, "cache_mode", Reason.INVALID_REQUEST),
    "request id with a space": ({"request_id": "a b"}, "request_id", Reason.INVALID_REQUEST),
    "request id too long": ({"request_id": "x" * 129}, "request_id", Reason.INVALID_REQUEST),
    "tenant too long": ({"tenant": "x" * 129}, "tenant", Reason.INVALID_REQUEST),
}


@pytest.mark.parametrize(("fields", "field", "reason"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
async def test_refused_by_name_before_any_compute(client, scheduler, fields, field, reason):
    reading = await client.generate(**fields)
    assert reading.code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(reading.error, InvalidRequest)
    assert (reading.error.field, reading.error.reason) == (field, reason)
    assert reading.error.problem
    assert reading.responses == []
    assert scheduler.requests == []


async def test_no_prompt_at_all(client, scheduler):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in client.stub.Generate(inference_pb2.GenerateRequest(max_tokens=4), timeout=10):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "prompt" in (caught.value.details() or "")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 1},
        {"max_tokens": 3},
        {"max_tokens": 120},
        {"sampling": sampling(confidence_threshold=0.0)},
        {"sampling": sampling(confidence_threshold=1.0)},
        {"sampling": sampling(confidence_quota=2**31 - 1)},
        {"sampling": sampling(random=types_pb2.RandomReveal())},
    ],
    ids=str,
)
async def test_the_edges_of_the_allowed_pass(client, scheduler, fields):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens([65] * 120)), finished()))
    reading = await client.generate(**fields)
    assert reading.error is None
    assert reading.finished.usage.completion_tokens == fields.get("max_tokens", 4)


async def test_a_literal_mask_token_in_text_stays_text(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens([65] * 4)), finished()))
    await client.generate(text="a<|mask|>b")
    assert bytes(scheduler.requests[0].prompt_token_ids) == b"a<|mask|>b"


async def test_a_pool_too_small_is_reported_as_the_scheduler_says(client, scheduler):
    scheduler.script(play_then_raise(TooLong("max_tokens", "no worker's pool holds it")))
    reading = await client.generate()
    assert isinstance(reading.error, TooLong) and reading.error.field == "max_tokens"
    assert reading.responses == []
    assert len(scheduler.requests) == 1
