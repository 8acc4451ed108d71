"""A client that leaves or runs out of time takes its request with it, on every hop."""

from __future__ import annotations

import asyncio

import grpc

from common.errors import Reason
from common.rpc.channel import open_channel
from sangam.v1 import inference_pb2_grpc
from tests.gateway.running_gateway import generate_request, running_gateway, take
from tests.gateway.scripted_scheduler import finished, play, play_then_hang, queued, revealed_tokens, step

HANGING = play_then_hang(queued(), step(0, 0, {0: 97}))
WHOLE = play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished())


async def test_cancelling_the_call_cancels_it_at_the_scheduler_and_frees_its_place(start_gateway, scheduler):
    scheduler.script(HANGING, WHOLE)
    async with start_gateway(max_inflight_requests=1) as client:
        call = client.stub.Generate(generate_request(request_id="same"), timeout=20)
        await take(call, "accepted")
        await take(call, "committed")
        call.cancel()
        await asyncio.wait_for(scheduler.cancelled.wait(), 10)
        assert (await client.generate(request_id="same")).text == "abcd"


async def test_a_client_whose_connection_drops_is_a_cancelled_one(start_gateway, scheduler):
    scheduler.script(HANGING)
    async with start_gateway() as client:
        async with open_channel(client.address) as channel:
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(generate_request())
            await take(call, "accepted")
        await asyncio.wait_for(scheduler.cancelled.wait(), 10)


async def test_the_clients_deadline_travels_on_shortened(client, scheduler):
    scheduler.script(WHOLE)
    await client.generate(timeout_s=30.0)
    (left_s,) = scheduler.remaining_s
    # gRPC rounds long timeouts up on the wire, by less than a fiftieth.
    assert left_s is not None and 0 < left_s < 30.0 * 1.02


async def test_without_a_deadline_none_is_made_up(client, scheduler):
    scheduler.script(WHOLE)
    await client.generate(timeout_s=None)
    assert scheduler.remaining_s == [None]


async def test_the_default_deadline_is_for_clients_without_one(start_gateway, scheduler):
    scheduler.script(WHOLE, WHOLE)
    async with start_gateway(default_deadline_s=100.0) as client:
        await client.generate(timeout_s=None)
        await client.generate(timeout_s=1000.0)
    first, second = scheduler.remaining_s
    assert first is not None and first < 100.0 * 1.02
    assert second is not None and 100.0 * 1.02 < second < 1000.0 * 1.02


async def test_a_deadline_in_mid_stream_ends_with_a_status_and_cancels(start_gateway, scheduler):
    scheduler.script(HANGING)
    async with start_gateway(default_deadline_s=0.3) as client:
        reading = await client.generate(timeout_s=None)
    assert reading.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert reading.error is not None and reading.error.reason is Reason.DEADLINE_EXCEEDED
    assert reading.text == "a"
    assert scheduler.cancelled.is_set()


async def test_a_deadline_while_the_scheduler_is_away_ends_with_a_status(model_dir, tmp_path, scheduler):
    async with running_gateway(model_dir, "127.0.0.1:1", tmp_path / "ready.json", default_deadline_s=0.3) as client:
        reading = await client.generate(timeout_s=None)
    assert reading.code is grpc.StatusCode.DEADLINE_EXCEEDED
