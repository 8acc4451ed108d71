"""A client that brings the tokens it has: a gateway that does not know its request goes on behind them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from common.errors import Reason
from sangam.v1 import types_pb2
from tests.gateway.gated import Gate
from tests.gateway.running_gateway import EOS, MASK, generate_request, read_on, take
from tests.gateway.scripted_scheduler import (
    LOST,
    block_committed,
    finished,
    play,
    play_then_raise,
    queued,
    revealed_tokens,
    step,
)
from tests.metrics.measured import Growth

SECOND = (queued(), step(1, 0, revealed_tokens(b"efgh", 4)), block_committed(1, decode_forwards=2), finished())
WHOLE = play(queued(), step(0, 0, revealed_tokens(b"abcd")), *SECOND[1:])


def carrying(tokens: bytes | list[int], **fields: Any) -> dict[str, Any]:
    return {"request_id": "r", "max_tokens": 8, "from_position": len(tokens), "committed_token_ids": tokens, **fields}


@pytest.mark.parametrize("tokens", [b"abcd", b"abcdef"], ids=["at a block's end", "within a block"])
async def test_a_request_that_is_not_known_begins_behind_the_whole_blocks(client, scheduler, tokens):
    scheduler.script(play(*SECOND))
    reading = await client.generate(**carrying(tokens))
    (asked,) = scheduler.requests
    assert bytes(asked.committed_token_ids) == b"abcd"
    # Of an open block nothing is taken over: it runs again from its first step.
    assert not asked.shown.positions
    assert (len(reading.of("accepted")), tokens.decode() + reading.text) == (1, "abcdefgh")
    assert bytes(reading.token_ids) == b"abcdefgh"[len(tokens) :]


async def test_what_the_carried_blocks_cost_is_not_told_as_if_it_were_known(client, scheduler):
    scheduler.script(play(*SECOND))
    finished = (await client.generate(**carrying(b"abcde"))).finished
    assert [block.block for block in finished.blocks] == [1]
    usage = finished.usage
    assert (usage.carried_tokens, usage.completion_tokens) == (4, 8)
    assert (usage.prefill_forwards, usage.decode_forwards, usage.attempts) == (1, 2, 1)


async def test_less_than_a_block_is_nothing_to_begin_behind(client, scheduler):
    scheduler.script(WHOLE)
    reading = await client.generate(**carrying(b"abc"))
    assert not scheduler.requests[0].committed_token_ids
    assert (reading.text, reading.finished.usage.carried_tokens) == ("defgh", 0)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [(list(b"abcdefgh"), types_pb2.FINISH_REASON_LENGTH), ([*b"abcde", EOS], types_pb2.FINISH_REASON_STOP)],
    ids=["max_tokens", "end of text"],
)
async def test_a_client_that_missed_only_the_end_gets_it_without_the_scheduler(client, scheduler, tokens, reason):
    reading = await client.generate(**carrying(tokens))
    assert [response.WhichOneof("event") for response in reading.responses] == ["accepted", "finished"]
    assert reading.finished.finish_reason == reason
    usage = reading.finished.usage
    assert (usage.carried_tokens, usage.completion_tokens, usage.prefill_forwards) == (len(tokens),) * 2 + (0,)
    assert scheduler.requests == []


async def test_others_see_the_carried_tokens_too(client, scheduler):
    gate = Gate((queued(),), SECOND[1:])
    scheduler.script(gate.act)
    call = client.stub.Generate(generate_request(**carrying(b"abcd")), timeout=30)
    await take(call, "accepted")
    other = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    await take(other, "accepted")
    assert (await take(other, "committed")).text == "abcd"
    gate.open()
    assert [(await read_on(one)).text for one in (call, other)] == ["efgh", "efgh"]
    assert (await client.generate(request_id="r", max_tokens=8)).text == "abcdefgh"
    assert len(scheduler.requests) == 1


async def test_a_scheduler_that_breaks_is_asked_again_with_carried_and_new_tokens(client, scheduler):
    scheduler.script(
        play_then_raise(LOST, queued(), step(1, 0, {4: 101, 6: 103})),
        play(queued(), step(1, 0, {5: 102, 7: 104}), finished()),
    )
    assert (await client.generate(**carrying(b"abcd"))).text == "efgh"
    again = scheduler.requests[1]
    assert (bytes(again.committed_token_ids), bytes(again.shown.token_ids)) == (b"abcd", b"eg")


@pytest.mark.parametrize("live", [True, False], ids=["live", "finished"])
async def test_a_gateway_that_knows_the_request_goes_by_its_own_tokens_and_counts_those_that_differ(
    client, scheduler, live
):
    gate = Gate((queued(), step(0, 0, revealed_tokens(b"abcd"))), SECOND[1:])
    scheduler.script(gate.act)
    first = client.stub.Generate(generate_request(request_id="r", max_tokens=8), timeout=30)
    await take(first, "accepted")
    await take(first, "committed")
    growth = Growth()
    if not live:
        gate.open()
        await read_on(first)
    second = client.stub.Generate(generate_request(**carrying(b"aXcdY")), timeout=30)
    gate.open()
    reading = await read_on(second)
    assert (reading.text, reading.code) == ("fgh", None)
    assert growth.of("sangam_carried_divergence_total") == 2
    assert growth.of("sangam_replay_divergence_total") == 0
    assert len(scheduler.requests) == 1


async def test_tokens_of_the_open_block_that_come_otherwise_are_counted(client, scheduler):
    scheduler.script(play(*SECOND))
    growth = Growth()
    assert (await client.generate(**carrying(b"abcdeX"))).text == "gh"
    assert growth.of("sangam_carried_divergence_total") == 1
    assert growth.of("sangam_replay_divergence_total") == 0


async def test_a_scheduler_that_runs_the_request_for_another_gateway_tells_all_it_has(client, scheduler):
    scheduler.script(play(queued(), step(1, 0, revealed_tokens(b"abcdef")), *SECOND[1:]))
    growth = Growth()
    assert (await client.generate(**carrying(b"abcd"))).text == "efgh"
    assert growth.of("sangam_replay_divergence_total") == 0


async def test_what_a_client_brought_is_not_audited(start_gateway, scheduler):
    scheduler.script(play(*SECOND), WHOLE, WHOLE)
    growth = Growth()
    async with start_gateway(audit_rate=1.0) as client:
        await client.generate(**carrying(b"abcd"))
        await client.generate(text="Another", max_tokens=8)
        async with asyncio.timeout(20):
            while not growth.of("sangam_audits_total", cache_mode="dual", outcome="equal"):  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.01)
    _, other, audit = scheduler.requests
    assert audit.prompt_token_ids == other.prompt_token_ids


BAD: dict[str, dict[str, Any]] = {
    "fewer than from_position": {"from_position": 4, "committed_token_ids": b"abc"},
    "more than from_position": {"from_position": 4, "committed_token_ids": b"abcde"},
    "some, from position 0": {"committed_token_ids": b"a"},
    "outside the vocabulary": {"from_position": 2, "committed_token_ids": [97, 264]},
    "far outside": {"from_position": 1, "committed_token_ids": [2**32 - 1]},
    "the mask": {"from_position": 2, "committed_token_ids": [97, MASK]},
    "behind the end of text": {"from_position": 3, "committed_token_ids": [97, EOS, 98]},
    "longer than any canvas": {"max_tokens": 10**6, "from_position": 10**5, "committed_token_ids": [97] * 10**5},
}


@pytest.mark.parametrize("known", [True, False], ids=["of a known request", "of a new one"])
@pytest.mark.parametrize("name", BAD)
async def test_tokens_that_cannot_be_the_requests_are_refused_by_name(client, scheduler, name, known):
    if known:
        scheduler.script(WHOLE)
        await client.generate(request_id="r", max_tokens=8)
    asked = len(scheduler.requests)
    refused = await client.generate(**{"request_id": "r", "max_tokens": 8, **BAD[name]})
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.error is not None and refused.error.reason is Reason.INVALID_REQUEST
    assert refused.error.metadata["field"] == "committed_token_ids"
    assert len(scheduler.requests) == asked


async def test_a_token_that_only_means_the_end_may_have_others_behind_it(client, scheduler):
    scheduler.script(play(*SECOND))
    reading = await client.generate(**carrying([97, EOS, 98, 99], ignore_eos=True))
    assert reading.code is None
    assert list(scheduler.requests[0].committed_token_ids) == [97, EOS, 98, 99]
