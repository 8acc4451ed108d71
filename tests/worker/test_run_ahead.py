"""A worker that begins the next block's prefill before it is asked for: the same answers, sooner or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from common.core.ids import RequestId, Role
from common.core.params import CacheMode, ConfidenceQuota, RandomReveal
from common.core.work import KvHandle, LocalPrefill, RemoteKv, RequestSpec
from common.worker.forward_watch import ForwardStuck
from sangam.v1 import types_pb2
from tests.engine.checkpoints import GOLDEN_DIR
from tests.engine.runs import request
from tests.metrics.measured import Growth, distribution_of
from tests.worker.harness import (
    HeldEngine,
    Outcome,
    RunningWorker,
    block_work,
    local_token_ids,
    read_decode,
    run_colocated,
    run_disaggregated,
    scheduler_of,
    source_after,
    workers,
)
from tests.worker.waiting import PATIENCE_S, eventually

MODEL = GOLDEN_DIR / "llada-gqa"
USED, DISCARDED = "sangam_ahead_forwards_used_total", "sangam_ahead_forwards_discarded_total"
WHOLE_BLOCKS: dict[str, Any] = {"strategy": ConfidenceQuota(8), "block_length_tokens": 8, "max_tokens": 48}
"""Six blocks, each of which its prefill finishes."""


def named(name: str, **changes: Any) -> RequestSpec:
    return request(request_id=RequestId(name), **(WHOLE_BLOCKS | changes))


def ahead_of(worker: RunningWorker) -> HeldEngine:
    assert worker.engine.ahead is not None, "this worker runs ahead"
    return worker.engine.ahead


async def decoded(worker: RunningWorker, spec: RequestSpec, generated: Sequence[int] = (), attempt: int = 0) -> Outcome:
    """One block of `spec` by one Decode call with a local prefill."""
    outcome = Outcome()
    await read_decode(
        worker.request_decode(block_work(spec, generated=generated, attempt=attempt), LocalPrefill()), outcome
    )
    return outcome


def tokens_of(outcome: Outcome) -> tuple[int, ...]:
    return tuple(outcome.tokens[position] for position in sorted(outcome.tokens))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("cache_mode", list(CacheMode))
@pytest.mark.parametrize("model", ["llada-gqa", "dream-gqa"])
async def test_blocks_that_decode_where_they_were_prefilled_come_out_the_same(
    model: str, cache_mode: CacheMode, temperature: float
) -> None:
    spec = request(
        (5,) * 20,
        **(WHOLE_BLOCKS | {"strategy": ConfidenceQuota(3)}),
        cache_mode=cache_mode,
        temperature=temperature,
        seed=4,
    )
    growth = Growth()
    async with workers(Role.DECODE, model=model) as (decode,):
        outcome = await run_colocated(decode, spec)
        assert ahead_of(decode).forwards == 5, "of every block but the first"
        assert decode.engine.forwards == 6 * 3 - 5
    assert (outcome.token_ids,) == tuple(local_token_ids(GOLDEN_DIR / model, [spec]))
    assert (outcome.prefill_forwards, outcome.decode_forwards) == (6, 12)
    assert (growth.of(USED), growth.of(DISCARDED)) == (5, 0)


@pytest.mark.parametrize("kv_transport", ["auto", "tcp"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("cache_mode", list(CacheMode))
async def test_blocks_that_decode_elsewhere_come_out_the_same(
    cache_mode: CacheMode, temperature: float, kv_transport: str
) -> None:
    spec = request(
        (5,) * 20,
        strategy=RandomReveal(),
        block_length_tokens=2,
        max_tokens=48,
        cache_mode=cache_mode,
        temperature=temperature,
        seed=2,
    )
    growth, outcome, moved = Growth(), Outcome(), 0
    async with workers(Role.PREFILL, Role.DECODE, kv_transport=kv_transport) as (prefill, decode):
        while outcome.finish == types_pb2.FINISH_REASON_UNSPECIFIED:
            work, used = block_work(spec, generated=outcome.token_ids), growth.of(USED)
            response = await prefill.request_prefill(work)
            outcome.reveal(response.first)
            if response.HasField("completion"):
                outcome.complete(response.completion)
                continue
            moved += growth.of(USED) > used
            await read_decode(decode.request_decode(work, source_after(work, response)), outcome)
        assert ahead_of(prefill).forwards == growth.of(USED) > moved > 0, "some finished their block, some did not"
        assert ahead_of(decode).forwards == 0, "it prefills nothing"
    assert (outcome.token_ids,) == tuple(local_token_ids(MODEL, [spec]))
    assert growth.of(DISCARDED) == 0


async def test_an_early_reader_gets_the_kv_of_a_prefill_that_was_made_before_its_call() -> None:
    spec = named("r", strategy=RandomReveal(), block_length_tokens=2, seed=2)
    alone = local_token_ids(MODEL, [spec])[0]
    growth, read_early = Growth(), 0
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        for block in range(spec.blocks):
            work, used = block_work(spec, generated=alone[: 2 * block]), growth.of(USED)
            facts = prefill.app.spec()
            handle = KvHandle(
                attempt=work.attempt,
                owner=facts.life,
                transport=facts.kv_transport,
                address=facts.kv_address,
                layout_fingerprint=facts.layout_fingerprint,
                canvas_tokens=work.canvas_tokens,
                pages=work.pages(16),
                lease_s=PATIENCE_S,
            )
            reader, outcome = decode.request_decode(work, RemoteKv(handle=handle, first=None)), Outcome()
            await eventually(lambda: bool(decode.app.view().fetching))
            response = await prefill.request_prefill(work)
            outcome.reveal(response.first)
            if response.HasField("completion"):
                reader.cancel()
                await eventually(lambda: decode.app.view().idle)
            else:
                read_early += growth.of(USED) > used
                await read_decode(reader, outcome)
            assert tokens_of(outcome) == alone[2 * block : 2 * block + 2]
        assert read_early > 0


async def test_whatever_lies_in_the_pages_for_it_does_not_matter() -> None:
    spec = request((5,) * 21, **(WHOLE_BLOCKS | {"strategy": ConfidenceQuota(3)}))
    async with workers(Role.DECODE) as (decode,):
        ahead_of(decode).pool.tensor.fill_(float("nan"))
        outcome = await run_colocated(decode, spec)
    assert (outcome.token_ids,) == tuple(local_token_ids(MODEL, [spec]))


async def test_another_request_waits_for_the_forward_in_hand_and_is_then_the_one_to_guess_at() -> None:
    growth, first, other = Growth(), named("a"), named("b", seed=1, temperature=0.7)
    alone = local_token_ids(MODEL, [first, other])
    async with workers(Role.DECODE) as (decode,):
        ahead_of(decode).hold()
        begun = await decoded(decode, first)
        await ahead_of(decode).until_held()
        waiting = asyncio.create_task(decoded(decode, other))
        await eventually(lambda: decode.app.view().running_iteration == 2)
        assert decode.engine.forwards == 1, "one forward at a time"
        ahead_of(decode).release()
        assert tokens_of(await waiting) == alone[1][:8]
        assert tokens_of(await decoded(decode, first, alone[0][:8])) == alone[0][8:16]
        assert tokens_of(begun) == alone[0][:8]
    assert (growth.of(USED), growth.of(DISCARDED)) == (0, 1), "not asked for before the next block was complete"


async def test_a_prefill_made_before_its_call_joins_the_batch_of_others() -> None:
    growth, specs = Growth(), [named(name, seed=seed, strategy=ConfidenceQuota(4)) for seed, name in enumerate("abc")]
    alone = local_token_ids(MODEL, specs)
    async with workers(Role.DECODE) as (decode,):
        await decoded(decode, specs[0])
        await eventually(lambda: ahead_of(decode).forwards == 1)
        decode.engine.hold()
        running = asyncio.create_task(decoded(decode, specs[2]))
        await decode.engine.until_held()
        both = [
            asyncio.create_task(decoded(decode, specs[0], alone[0][:8])),
            asyncio.create_task(decoded(decode, specs[1])),
        ]
        await eventually(lambda: len(decode.app.view().queued_prefills) == 2)
        decode.engine.release()
        assert tokens_of(await both[0]) == alone[0][8:16]
        assert tokens_of(await both[1]) == alone[1][:8]
        assert tokens_of(await running) == alone[2][:8]
    assert growth.of(USED) == 1


async def test_a_request_that_goes_on_otherwise_gets_its_own_prefill() -> None:
    growth, spec = Growth(), named("a")
    other_tokens = (7,) * 8
    async with workers(Role.DECODE, run_ahead_tokens=0) as (plain,):
        expected = tokens_of(await decoded(plain, spec, other_tokens))
    async with workers(Role.DECODE) as (decode,):
        await decoded(decode, spec)
        await eventually(lambda: ahead_of(decode).forwards == 1)
        assert tokens_of(await decoded(decode, spec, other_tokens)) == expected
    assert (growth.of(USED), growth.of(DISCARDED)) == (0, 1)


async def test_a_later_attempt_at_the_block_is_the_same_block() -> None:
    growth, spec = Growth(), named("a", temperature=0.8)
    (alone,) = local_token_ids(MODEL, [spec])
    async with workers(Role.DECODE) as (decode,):
        await decoded(decode, spec)
        outcome = await decoded(decode, spec, alone[:8], attempt=3)
        assert tokens_of(outcome) == alone[8:16]
    assert growth.of(USED) == 1


async def test_a_new_life_may_use_what_the_old_one_computed() -> None:
    spec = named("a")
    (alone,) = local_token_ids(MODEL, [spec])
    async with workers(Role.DECODE) as (decode,):
        await decoded(decode, spec)
        scheduler = scheduler_of(decode).scheduler
        scheduler.end_life(decode.app.life)
        await eventually(lambda: len(scheduler.registered) == 2)
        assert tokens_of(await decoded(decode, spec, alone[:8])) == alone[8:16]


async def test_wrong_guesses_leave_ever_more_chances_alone_and_a_right_one_ends_that() -> None:
    async with workers(Role.DECODE) as (decode,):
        taken = []
        for chance in range(12):
            before = ahead_of(decode).forwards
            await decoded(decode, named(f"once{chance}"))
            # The worker has begun by the time that it takes another call, if it begins.
            await run_colocated(decode, named(f"end{chance}", max_tokens=8))
            taken.append(ahead_of(decode).forwards - before)
        assert taken == [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0]
        for chance in range(7):
            await decoded(decode, named(f"more{chance}"))
        before = ahead_of(decode).forwards
        await run_colocated(decode, named("all"))
        assert ahead_of(decode).forwards == before + 5


@pytest.mark.parametrize("limit_tokens", [0, 48])
async def test_canvases_longer_than_allowed_are_not_begun(limit_tokens: int) -> None:
    growth, spec = Growth(), named("a")
    assert spec.canvas_tokens > 48
    async with workers(Role.DECODE, run_ahead_tokens=limit_tokens) as (decode,):
        outcome = await run_colocated(decode, spec)
        assert decode.engine.forwards == 6
        assert decode.engine.ahead is None or decode.engine.ahead.forwards == 0
    assert (outcome.token_ids,) == tuple(local_token_ids(MODEL, [spec]))
    assert growth.of(USED) == growth.of(DISCARDED) == 0


async def test_nothing_follows_a_request_that_has_ended_or_left() -> None:
    async with workers(Role.DECODE, Role.PREFILL) as (decode, prefill):
        await run_colocated(decode, named("last", max_tokens=8))
        cut = named("cut", max_tokens=5)
        await run_disaggregated(prefill, decode, cut)
        decode.engine.hold()
        call = decode.request_decode(block_work(named("left")), LocalPrefill())
        await decode.engine.until_held()
        call.cancel()
        await eventually(lambda: bool(decode.app.view().zombies))
        decode.engine.release()
        await eventually(lambda: decode.app.view().idle)
        assert len((await run_colocated(decode, named("next", max_tokens=8))).token_ids) == 8
        assert ahead_of(decode).forwards == ahead_of(prefill).forwards == 0


async def test_nothing_is_begun_while_others_are_here_or_while_the_worker_drains() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        first = asyncio.create_task(decoded(decode, named("a")))
        await decode.engine.until_held()
        second = asyncio.create_task(decoded(decode, named("b")))
        await eventually(lambda: len(decode.app.view().queued_prefills) == 1)
        await decode.engine.step_once()
        await first
        assert ahead_of(decode).forwards == 0
        decode.stop.set()
        await scheduler_of(decode).scheduler.until(lambda: scheduler_of(decode).scheduler.heartbeats[-1].draining)
        decode.engine.release()
        await second
        await decode.task
        assert ahead_of(decode).forwards == 0


async def test_a_forward_that_nobody_asked_for_is_watched_and_its_bugs_end_the_worker() -> None:
    async with workers(Role.DECODE, may_fail=True, stuck_forward_s=0.1) as (decode,):
        ahead_of(decode).hold()
        await decoded(decode, named("a"))
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(decode.task, PATIENCE_S)
        assert caught.value.subgroup(ForwardStuck) is not None
    async with workers(Role.DECODE, may_fail=True) as (decode,):
        ahead_of(decode).fault = ZeroDivisionError("a broken kernel")
        await decoded(decode, named("a"))
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(decode.task, PATIENCE_S)
        assert caught.value.subgroup(ZeroDivisionError) is not None


async def test_an_iteration_takes_as_long_as_its_forward_took_when_it_was_made() -> None:
    spec = named("a", max_tokens=16)
    (alone,) = local_token_ids(MODEL, [spec])
    async with workers(Role.DECODE) as (decode,):
        ahead_of(decode).hold()
        await decoded(decode, spec)
        await ahead_of(decode).until_held()
        before_s = distribution_of("sangam_iteration_s", kind="prefill").sum
        await asyncio.sleep(0.3)
        ahead_of(decode).release()
        assert tokens_of(await decoded(decode, spec, alone[:8])) == alone[8:]
        await eventually(lambda: distribution_of("sangam_iteration_s", kind="prefill").sum >= before_s + 0.3)
