"""Generate, from the client's side: what arrives, in which order, and what it says."""

from __future__ import annotations

import pytest

from common.core.params import default_seed
from common.errors import Reason
from sangam.v1 import types_pb2
from tests.gateway.running_gateway import EOS, running_gateway
from tests.gateway.scripted_scheduler import (
    block_committed,
    finished,
    play,
    play_at_once,
    queued,
    revealed_tokens,
    step,
)


def ids(text: str) -> list[int]:
    """The byte-level model's ids are the bytes."""
    return list(text.encode())


async def test_two_blocks_revealed_out_of_order_arrive_as_growing_text(client, scheduler):
    a, b = ids("abcd"), ids("efgh")
    scheduler.script(
        play(
            queued(),
            step(0, 0, {0: a[0], 2: a[2]}),
            step(0, 1, {3: a[3]}),
            step(0, 2, {1: a[1]}),
            block_committed(0, decode_forwards=2),
            step(1, 0, revealed_tokens(b, 4)),
            block_committed(1, decode_forwards=0),
            finished(),
        )
    )
    reading = await client.generate(max_tokens=8)
    assert [(run.from_position, run.text) for run in reading.of("committed")] == [(0, "a"), (1, "bcd"), (4, "efgh")]
    assert reading.token_ids == a + b
    assert reading.of("revealed") == []
    assert reading.responses[0].WhichOneof("event") == "accepted"
    assert reading.responses[-1].WhichOneof("event") == "finished"
    usage = reading.finished.usage
    assert reading.finished.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 8)
    assert (usage.prefill_forwards, usage.decode_forwards, usage.attempts) == (2, 2, 2)
    assert usage.cache_mode == types_pb2.CACHE_MODE_DUAL
    assert 0 < usage.time_to_first_commit_s <= usage.total_s
    assert [block.prefill_worker_id for block in reading.finished.blocks] == ["p0", "p0"]
    assert [block.transfer_bytes for block in reading.finished.blocks] == [4096, 4096]


async def test_what_the_scheduler_says_at_once_reaches_the_client_as_one_run(client, scheduler):
    a, b = ids("abcd"), ids("efgh")
    scheduler.script(
        play_at_once(
            queued(),
            step(0, 0, {0: a[0], 2: a[2]}),
            step(0, 1, {1: a[1], 3: a[3]}),
            block_committed(0, decode_forwards=1),
            step(1, 0, revealed_tokens(b, 4)),
            block_committed(1, decode_forwards=0),
            finished(),
        )
    )
    reading = await client.generate(max_tokens=8, include_revealed=True)
    assert [(run.from_position, run.text) for run in reading.of("committed")] == [(0, "abcdefgh")]
    assert reading.token_ids == a + b
    assert [list(revealed.positions) for revealed in reading.of("revealed")] == [[2]]
    usage = reading.finished.usage
    assert (usage.prefill_forwards, usage.decode_forwards, usage.attempts) == (2, 1, 2)


async def test_provisional_tokens_come_on_request_only_and_once(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, {0: 97, 2: 99}), step(0, 1, {1: 98, 3: 100}), finished()))
    reading = await client.generate(include_revealed=True)
    (revealed,) = reading.of("revealed")
    assert (list(revealed.positions), list(revealed.token_ids)) == ([2], [99])
    assert list(revealed.confidences) == [pytest.approx(0.5 + 2 / 1024)]
    assert reading.text == "abcd"


async def test_the_request_reaches_the_scheduler_as_asked(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens([1, 2, 3, 4])), finished()))
    sampling = types_pb2.SamplingParams(confidence_quota=2, temperature=0.5, seed=2**64 - 1)
    reading = await client.generate(
        request_id="mine-1",
        token_ids=[5, 6, 7],
        cache_mode=types_pb2.CACHE_MODE_PREFIX,
        sampling=sampling,
        ignore_eos=True,
        tenant="t",
        priority=-3,
    )
    (request,) = scheduler.requests
    assert request.request_id == reading.of("accepted")[0].request_id == "mine-1"
    assert list(request.prompt_token_ids) == [5, 6, 7]
    assert (request.max_tokens, request.block_length_tokens) == (4, 4)
    assert request.cache_mode == types_pb2.CACHE_MODE_PREFIX
    assert request.sampling == sampling
    assert (request.ignore_eos, request.tenant, request.priority) == (True, "t", -3)
    assert list(request.committed_token_ids) == [] and not request.shown.positions
    assert reading.of("accepted")[0].canvas_tokens == 7


async def test_defaults_are_block_32_threshold_09_and_a_seed_from_the_content(client, scheduler):
    act = play(queued(), step(0, 0, revealed_tokens([65] * 32)), finished())
    scheduler.script(act, act)
    first = await client.generate(token_ids=[1, 2], max_tokens=32, block_length_tokens=0)
    again = await client.generate(token_ids=[1, 2], max_tokens=32, block_length_tokens=0)
    expected = default_seed(prompt_token_ids=[1, 2], max_tokens=32, block_length_tokens=32)
    assert [first.of("accepted")[0].seed, again.of("accepted")[0].seed] == [expected, expected]
    for request in scheduler.requests:
        assert request.block_length_tokens == 32
        assert request.sampling.confidence_threshold == 0.9
        assert request.sampling.seed == expected
        assert request.cache_mode == types_pb2.CACHE_MODE_DUAL


async def test_request_ids_that_the_gateway_makes_share_nothing(client, scheduler):
    act = play(queued(), step(0, 0, revealed_tokens([65] * 4)), finished())
    scheduler.script(*[act] * 20)
    made = [(await client.generate()).of("accepted")[0].request_id for _ in range(20)]
    bodies = [int(request_id.removeprefix("gen-"), 16) for request_id in made]
    assert len(set(bodies)) == 20
    # 128 random bits: among 190 pairs, two within 2^64 of each other would be a one-in-10^17 chance.
    assert min(abs(a - b) for i, a in enumerate(bodies) for b in bodies[:i]) > 2**64


async def test_output_is_cut_at_max_tokens(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(ids("abcdefgh"))), finished()))
    reading = await client.generate(max_tokens=5, block_length_tokens=8)
    assert reading.text == "abcde"
    assert reading.finished.usage.completion_tokens == 5


async def test_end_of_text_is_the_last_token_and_has_no_text(client, scheduler):
    scheduler.script(
        play(
            queued(),
            step(0, 0, {1: EOS, 3: 122}),
            step(0, 1, {0: 97}),
            block_committed(0, decode_forwards=1),
            finished(types_pb2.FINISH_REASON_STOP),
        )
    )
    reading = await client.generate(max_tokens=8)
    assert reading.token_ids == [97, EOS]
    assert reading.text == "a"
    assert reading.finished.finish_reason == types_pb2.FINISH_REASON_STOP
    assert reading.finished.usage.completion_tokens == 2


async def test_ignore_eos_goes_on_past_it(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, {0: 97, 1: EOS, 2: 98, 3: EOS}), finished()))
    reading = await client.generate(ignore_eos=True)
    assert reading.token_ids == [97, EOS, 98, EOS]
    assert reading.finished.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_characters_split_over_commits_are_never_split_in_the_text(client, scheduler):
    euro, rest = ids("€"), ids("!")
    scheduler.script(
        play(
            queued(),
            step(0, 0, {0: euro[0]}),
            step(0, 1, {1: euro[1], 3: rest[0]}),
            step(0, 2, {2: euro[2]}),
            finished(),
        )
    )
    reading = await client.generate()
    assert [run.text for run in reading.of("committed")] == ["", "", "€!"]
    assert reading.token_ids == euro + rest


async def test_a_character_that_never_becomes_whole_is_flushed_with_the_last_run(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, revealed_tokens([*ids("abc"), 0xE2])), finished()))
    assert (await client.generate()).text == "abc\ufffd"


async def test_a_request_ended_with_tokens_missing_is_an_internal_error(client, scheduler):
    scheduler.script(play(queued(), step(0, 0, {0: 97}), finished()))
    reading = await client.generate()
    assert reading.error is not None and reading.error.reason.value == "INTERNAL"
    assert reading.of("finished") == []


async def test_a_model_without_a_tokenizer_speaks_token_ids(tmp_path, model_dir, scheduler):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(ids("abcd"))), finished()))
    async with running_gateway(bare, scheduler.address, tmp_path / "gateway.json") as client:
        reading = await client.generate(token_ids=[1, 2])
        refused = await client.generate(text="Hello")
    assert (reading.token_ids, reading.text) == (ids("abcd"), "")
    assert refused.error is not None and refused.error.reason is Reason.INVALID_PROMPT
    assert len(scheduler.requests) == 1
