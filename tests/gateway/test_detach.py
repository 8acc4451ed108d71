"""How long a request outlives the calls that watch it: as long as its client said, and the server allows."""

from __future__ import annotations

import asyncio

import pytest

from common.rpc.channel import open_channel
from sangam.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.gated import Gate
from tests.gateway.running_gateway import generate_request, take
from tests.gateway.scripted_scheduler import FIRST, REST, play

LONG_MS = 60_000


def request(**fields: int) -> inference_pb2.GenerateRequest:
    return generate_request(**{"request_id": "r", "max_tokens": 8, **fields})


async def begin_and_lose(client, grace_ms: int) -> inference_pb2.Accepted:
    """Begin the request, read its first run, and let the connection go."""
    async with open_channel(client.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(request(detach_grace_ms=grace_ms), timeout=60)
        accepted = await take(call, "accepted")
        assert (await take(call, "committed")).text == "abcd"
    assert isinstance(accepted, inference_pb2.Accepted)
    return accepted


async def test_a_client_that_lost_its_connection_goes_on_where_it_was(client, scheduler):
    gate = Gate(FIRST, REST)
    scheduler.script(gate.act)
    accepted = await begin_and_lose(client, LONG_MS)
    assert accepted.detach_grace_ms == LONG_MS
    gate.open()
    again = await client.generate(**{"request_id": "r", "max_tokens": 8, "from_position": 4})
    assert (again.text, again.of("accepted")[0].seed) == ("efgh", accepted.seed)
    assert len(scheduler.requests) == 1
    assert not scheduler.cancelled.is_set()


async def test_what_finishes_while_nobody_watches_is_kept(client, scheduler):
    gate = Gate(FIRST, REST)
    scheduler.script(gate.act)
    await begin_and_lose(client, LONG_MS)
    gate.open()
    assert (await client.generate(request_id="r", max_tokens=8)).text == "abcdefgh"
    assert len(scheduler.requests) == 1


@pytest.mark.parametrize("settings", [{}, {"max_detach_grace_s": 0.1}], ids=["client", "server"])
async def test_the_grace_of_the_client_and_the_limit_of_the_server_end_it(start_gateway, scheduler, settings):
    gate = Gate(FIRST, REST)
    scheduler.script(gate.act, play(*FIRST, *REST))
    async with start_gateway(**settings) as client:
        accepted = await begin_and_lose(client, LONG_MS if settings else 100)
        assert accepted.detach_grace_ms == 100
        await asyncio.wait_for(scheduler.cancelled.wait(), 30)
        # Its client may still come: the request then runs again.
        assert (await client.generate(request_id="r", max_tokens=8, from_position=4)).text == "efgh"


async def test_a_client_that_came_back_and_says_so_ends_it_at_once(client, scheduler):
    scheduler.script(Gate(FIRST, REST).act)
    await begin_and_lose(client, LONG_MS)
    call = client.stub.Generate(request(), timeout=60)
    await take(call, "accepted")
    call.cancel()
    await asyncio.wait_for(scheduler.cancelled.wait(), 30)


async def test_cancel_ends_what_nobody_watches(start_gateway, scheduler):
    scheduler.script(Gate(FIRST, REST).act, play(*FIRST, *REST))
    async with start_gateway(max_inflight_requests=1) as client:
        await begin_and_lose(client, LONG_MS)
        ended = await client.stub.Cancel(inference_pb2.CancelRequest(request_id="r"), timeout=30)
        assert ended.was_running
        # Its place is free again.
        assert (await client.generate(request_id="other", max_tokens=8)).text == "abcdefgh"


async def test_a_gateway_that_stops_does_not_wait_for_clients_that_are_gone(start_gateway, scheduler):
    scheduler.script(Gate(FIRST, REST).act)
    async with asyncio.timeout(25), start_gateway() as client:
        await begin_and_lose(client, LONG_MS)
    await asyncio.wait_for(scheduler.cancelled.wait(), 30)
