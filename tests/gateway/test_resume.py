"""A scheduler that goes away: the request goes on, and what was shown neither repeats nor changes."""

from __future__ import annotations

import grpc
import pytest

from common.clock import ManualClock
from common.committed import CommittedTokens
from common.core.ids import RequestId
from common.core.params import CacheMode, ConfidenceQuota, SamplingParams
from common.core.work import RequestSpec
from common.errors import Reason, WireError
from sangam.v1 import types_pb2
from services.gateway.progress import RequestProgress
from services.gateway.resume import Deadline, ResumePolicy, ResumingSchedule, ScheduleBroken
from tests.gateway.running_gateway import EOS, generate_request, running_gateway, take
from tests.gateway.scripted_scheduler import (
    LOST,
    ScriptedScheduler,
    block_committed,
    finished,
    play,
    play_then_hang,
    play_then_raise,
    queued,
    revealed_tokens,
    step,
)

FIRST = (
    queued(),
    step(0, 0, revealed_tokens(b"abcd")),
    block_committed(0, decode_forwards=0),
    step(1, 0, {4: 101, 6: 103}),
)


async def test_the_second_call_pins_everything_seen_and_the_client_sees_one_text(client, scheduler):
    scheduler.script(
        play_then_raise(LOST, *FIRST),
        play(queued(), step(1, 0, {7: 104}), step(1, 1, {5: 102}), block_committed(1, decode_forwards=1), finished()),
    )
    reading = await client.generate(max_tokens=8)
    assert [(run.from_position, run.text) for run in reading.of("committed")] == [(0, "abcd"), (4, "e"), (5, "fgh")]
    assert len(reading.of("accepted")) == 1
    first, second = scheduler.requests
    assert second.request_id == first.request_id
    assert second.sampling == first.sampling
    assert bytes(second.committed_token_ids) == b"abcd"
    assert (list(second.shown.positions), bytes(second.shown.token_ids)) == ([4, 6], b"eg")
    usage = reading.finished.usage
    # Block 1 was tried twice; the broken try's forwards are not known and not counted.
    assert (usage.attempts, usage.prefill_forwards, usage.decode_forwards) == (3, 2, 1)


async def test_replayed_and_contradicting_tokens_change_nothing(client, scheduler):
    scheduler.script(
        play_then_raise(LOST, *FIRST),
        play(queued(), step(1, 0, {4: 88, 5: 102, 6: 88, 7: 104}), finished()),
    )
    reading = await client.generate(max_tokens=8)
    assert reading.text == "abcdefgh"
    assert bytes(reading.token_ids) == b"abcdefgh"


async def test_a_scheduler_that_crashes_and_returns_on_the_same_port(model_dir, tmp_path):
    before, after = ScriptedScheduler(), ScriptedScheduler()
    before.script(play_then_hang(*FIRST))
    after.script(play(queued(), step(1, 0, {5: 102, 7: 104}), finished()))
    async with before.serving():
        port = int(before.address.rpartition(":")[2])
        gateway = running_gateway(model_dir, before.address, tmp_path / "gateway.json")
        client = await gateway.__aenter__()
        call = client.stub.Generate(generate_request(max_tokens=8), timeout=20)
        await take(call, "accepted")
        assert (await take(call, "committed")).text == "abcd"
        assert (await take(call, "committed")).text == "e"
    async with after.serving(port):
        assert (await take(call, "committed")).text == "fgh"
        await take(call, "finished")
        await gateway.__aexit__(None, None, None)
    assert bytes(after.requests[0].committed_token_ids) == b"abcd"


async def test_a_request_waits_for_a_scheduler_that_is_not_up_yet(model_dir, tmp_path):
    late = ScriptedScheduler()
    late.script(play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished()))
    async with late.serving():
        port = int(late.address.rpartition(":")[2])
    async with running_gateway(model_dir, late.address, tmp_path / "gateway.json") as client:
        call = client.stub.Generate(generate_request(), timeout=20)
        async with late.serving(port):
            await take(call, "accepted")
            assert (await take(call, "committed")).text == "abcd"
            await take(call, "finished")


async def test_complete_text_needs_no_second_call(client, scheduler):
    last = (step(1, 0, {4: 101, 5: 102, 6: 103}), step(1, 1, {7: 104}))
    scheduler.script(play_then_raise(LOST, *FIRST[:3], *last))
    reading = await client.generate(max_tokens=8)
    assert reading.text == "abcdefgh"
    assert reading.finished.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert len(scheduler.requests) == 1
    usage = reading.finished.usage
    # The last block's report was lost; its steps tell what it took.
    assert (usage.prefill_forwards, usage.decode_forwards, usage.attempts) == (2, 1, 2)


async def test_end_of_text_before_the_break_ends_the_request(client, scheduler):
    scheduler.script(play_then_raise(LOST, queued(), step(0, 0, {0: 97, 1: EOS})))
    reading = await client.generate(max_tokens=8)
    assert reading.token_ids == [97, EOS]
    assert reading.finished.finish_reason == types_pb2.FINISH_REASON_STOP
    assert len(scheduler.requests) == 1


async def test_a_call_that_ends_without_a_verdict_is_asked_again(client, scheduler):
    scheduler.script(play(*FIRST), play(queued(), step(1, 0, {5: 102, 7: 104}), finished()))
    assert (await client.generate(max_tokens=8)).text == "abcdefgh"


async def test_a_resumed_call_outlasts_the_ghost_of_its_former_one(client, scheduler):
    ghost = WireError(Reason.DUPLICATE_REQUEST_ID, "still running")
    scheduler.script(
        play_then_raise(LOST, *FIRST), play_then_raise(ghost), play(queued(), step(1, 0, {5: 102, 7: 104}), finished())
    )
    assert (await client.generate(max_tokens=8)).text == "abcdefgh"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WireError(Reason.QUEUE_FULL, "full", retry_after_s=2.0), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (WireError(Reason.ATTEMPTS_EXHAUSTED, "8 attempts"), grpc.StatusCode.ABORTED),
        (ValueError("a bug"), grpc.StatusCode.INTERNAL),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_verdict_is_passed_on_and_not_retried(client, scheduler, error, code):
    scheduler.script(play_then_raise(error))
    reading = await client.generate()
    assert reading.code is code
    assert len(scheduler.requests) == 1
    if isinstance(error, WireError):
        assert reading.error is not None
        assert (reading.error.reason, reading.error.retry_after_s) == (error.reason, error.retry_after_s)


async def test_a_request_of_a_restarted_gateway_outlasts_the_ghost_of_its_predecessors_call(client, scheduler):
    ghost = WireError(Reason.DUPLICATE_REQUEST_ID, "still running")
    scheduler.script(
        play_then_raise(ghost), play_then_raise(ghost), play(*FIRST, step(1, 0, {5: 102, 7: 104}), finished())
    )
    assert (await client.generate(max_tokens=8)).text == "abcdefgh"


class BrokenScheduler:
    """Breaks every call, or raises `error`; healthy or not as told."""

    def __init__(self, clock: ManualClock, *, healthy: bool, error: WireError | None = None) -> None:
        self.clock = clock
        self.error = error or ScheduleBroken("gone")
        self.healthy = healthy
        self.calls = 0
        self.waits_s: list[float] = []

    async def schedule(self, spec, *, timeout_s):
        self.calls += 1
        raise self.error
        yield

    async def wait_until_serving(self, *, timeout_s):
        self.waits_s.append(timeout_s)
        if not self.healthy:
            self.clock.advance(timeout_s)
        return self.healthy


class EagerClock(ManualClock):
    """Sleeping moves it."""

    async def sleep(self, duration_s: float) -> None:
        self.advance(duration_s)


class NoText:
    """A detokenizer of nothing."""

    def feed(self, token_ids):
        return ""

    def finish(self):
        return ""


def resuming(scheduler: BrokenScheduler, *, remaining_s: float | None, policy: ResumePolicy) -> ResumingSchedule:
    spec = RequestSpec(
        request_id=RequestId("r"),
        prompt_token_ids=(1,),
        max_tokens=8,
        block_length_tokens=4,
        cache_mode=CacheMode.DUAL,
        sampling=SamplingParams(strategy=ConfidenceQuota(1), temperature=0.0, seed=0),
        ignore_eos=True,
    )
    return ResumingSchedule(
        scheduler=scheduler,
        progress=RequestProgress(spec=spec, eos_token_id=0, text=NoText()),
        deadline=Deadline(clock=scheduler.clock, remaining_s=remaining_s),
        policy=policy,
        clock=scheduler.clock,
    )


async def failure_of(schedule: ResumingSchedule) -> WireError:
    with pytest.raises(WireError) as caught:
        async for _ in schedule.events():
            pass
    return caught.value


async def test_a_scheduler_that_breaks_every_call_ends_the_request_after_the_allowed_number():
    scheduler = BrokenScheduler(EagerClock(), healthy=True)
    policy = ResumePolicy(max_fruitless_calls=3, backoff_s=1.0, max_backoff_s=2.0)
    error = await failure_of(resuming(scheduler, remaining_s=None, policy=policy))
    assert error.reason is Reason.SCHEDULER_UNAVAILABLE
    assert scheduler.calls == 4
    assert scheduler.clock.now() == 1.0 + 2.0 + 2.0


async def test_an_id_that_stays_taken_is_refused_in_the_end():
    taken = WireError(Reason.DUPLICATE_REQUEST_ID, "a live request has that id")
    scheduler = BrokenScheduler(EagerClock(), healthy=True, error=taken)
    error = await failure_of(resuming(scheduler, remaining_s=None, policy=ResumePolicy(max_fruitless_calls=3)))
    assert error is taken
    assert scheduler.calls == 4


async def test_an_outage_longer_than_allowed_ends_the_request():
    scheduler = BrokenScheduler(EagerClock(), healthy=False)
    error = await failure_of(resuming(scheduler, remaining_s=None, policy=ResumePolicy(max_outage_s=60.0)))
    assert error.reason is Reason.SCHEDULER_UNAVAILABLE
    assert (scheduler.calls, scheduler.waits_s) == (1, [60.0])


async def test_the_deadline_bounds_the_wait():
    scheduler = BrokenScheduler(EagerClock(), healthy=False)
    policy = ResumePolicy(max_outage_s=60.0, backoff_s=1.0)
    error = await failure_of(resuming(scheduler, remaining_s=5.0, policy=policy))
    assert error.reason is Reason.DEADLINE_EXCEEDED
    assert scheduler.waits_s == [4.0]


def test_whole_blocks_and_the_open_blocks_tokens_are_all_that_was_seen():
    tokens = CommittedTokens(max_tokens=12, eos_token_id=None)
    tokens.reveal(range(6), b"abcdef")
    tokens.reveal([7, 9], b"hj")
    assert bytes(tokens.whole_blocks(4)) == b"abcd"
    assert tokens.shown_in_block(1, 4) == ((4, 101), (5, 102), (7, 104))
