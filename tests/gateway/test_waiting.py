"""A request that no worker can take: whoever watches is told, whoever comes when it is over is not."""

from __future__ import annotations

from sangam.v1 import scheduler_pb2, types_pb2
from tests.gateway.gated import Gate
from tests.gateway.running_gateway import generate_request, read_on, take
from tests.gateway.scripted_scheduler import Event, finished, queued, revealed_tokens, step

WAITING = Event(waiting=scheduler_pb2.ScheduleWaiting(reason=types_pb2.WAIT_REASON_NO_WORKER))


async def test_a_wait_is_told_to_those_who_wait(client, scheduler):
    gate = Gate((queued(), WAITING), (step(0, 0, revealed_tokens(b"abcd")),), (finished(),))
    scheduler.script(gate.act)
    calls = [client.stub.Generate(generate_request(request_id="r"), timeout=30) for _ in range(2)]
    for call in calls:
        await take(call, "accepted")
        assert (await take(call, "waiting")).reason == types_pb2.WAIT_REASON_NO_WORKER
    gate.open()
    assert (await take(calls[0], "committed")).text == "abcd"
    late = client.stub.Generate(generate_request(request_id="r"), timeout=30)
    await take(late, "accepted")
    assert (await take(late, "committed")).text == "abcd"
    gate.open()
    for call in (*calls, late):
        assert (await read_on(call)).finished
    assert (await client.generate(request_id="r")).of("waiting") == []
