"""What the gateway's instruments say of requests and their ends."""

from __future__ import annotations

import asyncio

from common.errors import Reason, WireError
from tests.gateway.running_gateway import generate_request, take
from tests.gateway.scripted_scheduler import (
    finished,
    play,
    play_then_hang,
    play_then_raise,
    queued,
    revealed_tokens,
    step,
)
from tests.metrics.measured import Growth, value_of

FIRST = (queued(), step(0, 0, revealed_tokens(b"abcd")), step(1, 0, {4: 101}))


async def until_counted(growth: Growth, outcome: str) -> None:
    async with asyncio.timeout(20):
        while not growth.of("sangam_requests_total", outcome=outcome):  # noqa: ASYNC110  # no event to wait for
            await asyncio.sleep(0.01)


async def test_a_request_that_ends_well_counts_its_tokens_and_times(client, scheduler):
    growth = Growth()
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished()))
    reading = await client.generate(max_tokens=4)
    assert growth.of("sangam_requests_total", outcome="length") == 1
    assert growth.of("sangam_prompt_tokens_total") == reading.finished.usage.prompt_tokens > 0
    assert growth.of("sangam_completion_tokens_total") == 4
    assert growth.of("sangam_request_s") == growth.of("sangam_time_to_first_commit_s") == 1


async def test_a_request_that_fails_counts_by_its_reason(client, scheduler):
    growth = Growth()
    scheduler.script(play_then_raise(WireError(Reason.ATTEMPTS_EXHAUSTED, "no more"), queued()))
    assert (await client.generate()).error is not None
    assert growth.of("sangam_requests_total", outcome="ATTEMPTS_EXHAUSTED") == 1
    assert growth.of("sangam_request_s") == 0


async def test_a_client_that_leaves_counts_as_cancelled_and_its_place_is_free(client, scheduler):
    growth = Growth()
    scheduler.script(play_then_hang(*FIRST))
    call = client.stub.Generate(generate_request(max_tokens=8), timeout=20)
    await take(call, "accepted")
    await take(call, "committed")
    call.cancel()
    await until_counted(growth, "CANCELLED")
    async with asyncio.timeout(20):
        while value_of("sangam_inflight_requests"):  # noqa: ASYNC110  # sampled
            await asyncio.sleep(0.05)


async def test_tokens_that_a_resumed_call_shows_differently_are_counted_and_not_shown(client, scheduler):
    growth = Growth()
    lost = WireError(Reason.SCHEDULER_UNAVAILABLE, "gone")
    again = step(1, 0, {4: 88, 5: 102, 6: 103, 7: 104})
    scheduler.script(play_then_raise(lost, *FIRST), play(queued(), again, finished()))
    reading = await client.generate(max_tokens=8)
    assert reading.text == "abcdefgh"
    assert growth.of("sangam_replay_divergence_total") == 1
    assert growth.of("sangam_requests_total", outcome="length") == 1
