"""One request, several calls: attaching by request_id, from a position, while it runs and after it finished."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio
import pytest

from common.errors import Reason, WireError
from common.rpc.status import wire_error
from sangam.v1 import inference_pb2, types_pb2
from services.gateway.live_request import MAX_WATCHERS
from tests.gateway.gated import Gate
from tests.gateway.running_gateway import generate_request, read_on, running_gateway, take
from tests.gateway.scripted_scheduler import FIRST, REST, finished, play, play_then_raise, queued, revealed_tokens, step

WHOLE = play(*FIRST, *REST)


async def test_two_watchers_see_the_same_events(client, scheduler):
    gate = Gate(FIRST, REST)
    scheduler.script(gate.act)
    first = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    accepted = await take(first, "accepted")
    assert (await take(first, "committed")).text == "abcd"
    second = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    assert await take(second, "accepted") == accepted
    assert (await take(second, "committed")).text == "abcd"
    gate.open()
    readings = [await read_on(call) for call in (first, second)]
    for reading in readings:
        assert [(run.from_position, run.text) for run in reading.of("committed")] == [(4, "efgh")]
        assert bytes(reading.token_ids) == b"efgh"
        assert reading.code is None
    assert readings[0].finished == readings[1].finished
    assert len(scheduler.requests) == 1


async def test_a_watcher_that_leaves_takes_nothing_from_the_other(client, scheduler):
    gate = Gate(FIRST, REST)
    scheduler.script(gate.act)
    first = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    await take(first, "accepted")
    second = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    await take(second, "accepted")
    first.cancel()
    await asyncio.wait([asyncio.ensure_future(first.code())])
    assert (await take(second, "committed")).text == "abcd"
    gate.open()
    assert (await read_on(second)).text == "efgh"


@pytest.mark.parametrize("position", [1, 4, 6, 8])
async def test_attaching_from_a_position_brings_what_lies_behind_it(client, scheduler, position):
    scheduler.script(WHOLE)
    whole = await client.generate(request_id="r", max_tokens=8)
    again = await client.generate(request_id="r", max_tokens=8, from_position=position)
    assert again.text == whole.text[position:]
    assert again.token_ids == whole.token_ids[position:]
    assert [run.from_position for run in again.of("committed")] == [position][: position < 8]
    assert again.finished == whole.finished
    assert len(scheduler.requests) == 1


async def test_a_request_that_begins_from_a_position_shows_nothing_before_it(client, scheduler):
    scheduler.script(WHOLE)
    reading = await client.generate(max_tokens=8, from_position=3)
    assert [(run.from_position, run.text) for run in reading.of("committed")] == [(3, "d"), (4, "efgh")]


async def test_a_position_within_a_character_goes_on_with_the_whole_character(client, scheduler):
    tokens = "aé€".encode()
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(tokens)), finished()))
    fields = {"request_id": "r", "max_tokens": len(tokens), "block_length_tokens": len(tokens)}
    await client.generate(**fields)
    # The first byte of é alone completes no character: é still has to come.
    assert (await client.generate(**fields, from_position=2)).text == "é€"
    assert (await client.generate(**fields, from_position=3)).text == "€"


async def test_a_finished_request_is_forgotten_after_its_time(start_gateway, scheduler):
    scheduler.script(WHOLE, WHOLE)
    async with start_gateway(request_ttl_s=0.2) as client:
        await client.generate(request_id="r", max_tokens=8)
        await client.generate(request_id="r", max_tokens=8)
        assert len(scheduler.requests) == 1
        await asyncio.sleep(0.3)
        assert (await client.generate(request_id="r", max_tokens=8)).text == "abcdefgh"
        assert len(scheduler.requests) == 2


async def test_only_so_many_finished_requests_are_kept(start_gateway, scheduler):
    scheduler.script(WHOLE, WHOLE, WHOLE)
    async with start_gateway(max_kept_requests=1) as client:
        await client.generate(request_id="older", max_tokens=8)
        await client.generate(request_id="newer", max_tokens=8)
        await client.generate(request_id="newer", max_tokens=8)
        assert len(scheduler.requests) == 2
        await client.generate(request_id="older", max_tokens=8)
        assert len(scheduler.requests) == 3


async def test_a_request_that_failed_may_be_run_again(client, scheduler):
    scheduler.script(play_then_raise(WireError(Reason.ATTEMPTS_EXHAUSTED, "8 attempts"), *FIRST), WHOLE)
    failed = await client.generate(request_id="r", max_tokens=8)
    assert failed.code is grpc.StatusCode.ABORTED
    assert failed.text == "abcd"
    again = await client.generate(request_id="r", max_tokens=8, from_position=4)
    assert again.text == "efgh"
    assert scheduler.requests[0].sampling == scheduler.requests[1].sampling


async def test_a_failure_reaches_every_watcher(client, scheduler):
    async def held(request, context):
        async for response in play(*FIRST)(request, context):
            yield response
        await release.wait()
        raise ValueError("secret")

    release = asyncio.Event()
    scheduler.script(held)
    calls = [client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30) for _ in range(2)]
    for call in calls:
        await take(call, "accepted")
    release.set()
    for call in calls:
        reading = await read_on(call)
        assert (reading.text, reading.code) == ("abcd", grpc.StatusCode.INTERNAL)
        assert reading.error is not None and "secret" not in reading.error.message


DIFFERENT: dict[str, dict[str, Any]] = {
    "prompt": {"text": "Hallo"},
    "prompt of ids": {"token_ids": [72]},
    "max_tokens": {"max_tokens": 7},
    "block_length_tokens": {"block_length_tokens": 8},
    "cache_mode": {"cache_mode": types_pb2.CACHE_MODE_NONE},
    "sampling": {"sampling": types_pb2.SamplingParams(seed=1)},
    "ignore_eos": {"ignore_eos": True},
    "tenant": {"tenant": "t"},
    "priority": {"priority": 1},
}


@pytest.mark.parametrize("live", [True, False], ids=["live", "finished"])
@pytest.mark.parametrize("name", DIFFERENT)
async def test_another_body_under_the_same_id_is_refused_by_field(client, scheduler, name, live):
    gate = Gate((queued(),), (*FIRST[1:], *REST))
    scheduler.script(gate.act)
    call = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    await take(call, "accepted")
    if not live:
        gate.open()
        assert (await read_on(call)).code is None
    refused = await client.generate(**{"request_id": "r", "max_tokens": 8, **DIFFERENT[name]})
    assert refused.code is grpc.StatusCode.ALREADY_EXISTS
    assert refused.error is not None and refused.error.reason is Reason.DUPLICATE_REQUEST_ID
    assert refused.error.metadata == {"field": name.split()[0]}
    assert refused.responses == []
    gate.open()
    assert (await client.generate(request_id="r", max_tokens=8)).text == "abcdefgh"
    assert len(scheduler.requests) == 1


async def test_a_position_behind_the_end_is_refused_by_name(client, scheduler):
    refused = await client.generate(max_tokens=8, from_position=9)
    assert refused.error is not None and refused.error.reason is Reason.INVALID_REQUEST
    assert refused.error.metadata["field"] == "from_position"
    assert scheduler.requests == []


async def test_whoever_comes_later_sees_provisional_tokens_from_then_on(client, scheduler):
    gate = Gate((queued(), step(0, 0, {0: 97, 2: 99})), (step(0, 1, {3: 100}), step(0, 2, {1: 98}), finished()))
    scheduler.script(gate.act)
    plain = client.stub.Generate(generate_request(request_id="r"), timeout=30)
    await take(plain, "accepted")
    assert (await take(plain, "committed")).text == "a"
    curious = client.stub.Generate(generate_request(request_id="r", include_revealed=True), timeout=30)
    await take(curious, "accepted")
    assert (await take(curious, "committed")).text == "a"
    gate.open()
    assert (await take(plain, "committed")).text == "bcd"
    assert list((await take(curious, "revealed")).positions) == [3]
    assert (await take(curious, "committed")).text == "bcd"


async def test_only_so_many_calls_watch_one_request(client, scheduler):
    gate = Gate((queued(),), ())
    scheduler.script(gate.act)
    calls = [client.stub.Generate(generate_request(request_id="r"), timeout=60) for _ in range(MAX_WATCHERS)]
    for call in calls:
        await take(call, "accepted")
    refused = await client.generate(request_id="r")
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.error is not None and refused.error.retry_after_s
    for call in calls:
        call.cancel()
    await asyncio.wait_for(scheduler.cancelled.wait(), 20)


async def test_cancel_ends_a_request_for_all_who_watch_it(client, scheduler):
    gate = Gate(FIRST, REST)
    scheduler.script(gate.act)
    calls = [client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30) for _ in range(2)]
    for call in calls:
        await take(call, "accepted")
    cancelled = await client.stub.Cancel(inference_pb2.CancelRequest(request_id="r"), timeout=30)
    assert cancelled.was_running
    for call in calls:
        assert (await read_on(call)).code is grpc.StatusCode.CANCELLED
    await asyncio.wait_for(scheduler.cancelled.wait(), 20)
    again = await client.stub.Cancel(inference_pb2.CancelRequest(request_id="r"), timeout=30)
    assert not again.was_running


async def test_cancel_ends_a_request_of_another_gateway(client, scheduler):
    scheduler.of_other_gateways.add("there")
    cancelled = await client.stub.Cancel(inference_pb2.CancelRequest(request_id="there"), timeout=30)
    assert cancelled.was_running
    assert scheduler.cancels == ["there"]


async def test_a_request_that_another_gateway_cancelled_is_over_and_not_taken_up_again(client, scheduler):
    scheduler.script(play_then_raise(WireError(Reason.CANCELLED, "the request was cancelled"), *FIRST))
    ended = await client.generate(request_id="r", max_tokens=8)
    assert ended.code is grpc.StatusCode.CANCELLED
    assert ended.error is not None and ended.error.reason is Reason.CANCELLED
    assert ended.text == "abcd"
    assert len(scheduler.requests) == 1


async def test_cancel_without_a_scheduler_says_so_unless_the_request_runs_here(model_dir, tmp_path, scheduler):
    cancel = inference_pb2.CancelRequest(request_id="r")
    async with running_gateway(model_dir, "127.0.0.1:1", tmp_path / "ready.json") as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.Cancel(cancel, timeout=30)
        assert wire_error(caught.value).reason is Reason.SCHEDULER_UNAVAILABLE
        call = asyncio.create_task(client.generate(request_id="r", timeout_s=30))
        while not call.done():
            # Refused until the gateway has heard of the request.
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert (await client.stub.Cancel(cancel, timeout=30)).was_running
        assert (await call).code is grpc.StatusCode.CANCELLED


async def test_cancel_needs_an_id(client):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stub.Cancel(inference_pb2.CancelRequest(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
