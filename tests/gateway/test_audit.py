"""The online audit: which requests, how they are run again, and what is said of the two answers."""

from __future__ import annotations

import asyncio

import pytest

from common.core.ids import RequestId
from common.core.params import CacheMode, ConfidenceThreshold, SamplingParams
from common.core.work import RequestSpec
from common.errors import Reason, WireError
from sangam.v1 import types_pb2
from services.gateway.audit import MAX_BACKLOG, Agreement, Auditor, is_chosen
from services.gateway.resume import Events
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

ANSWER = play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished())


def spec(name: str, cache_mode: CacheMode = CacheMode.DUAL) -> RequestSpec:
    return RequestSpec(
        request_id=RequestId(name),
        prompt_token_ids=(1, 2, 3),
        max_tokens=4,
        block_length_tokens=4,
        cache_mode=cache_mode,
        sampling=SamplingParams(strategy=ConfidenceThreshold(0.9), temperature=0.5, seed=9),
        ignore_eos=False,
    )


async def until_ended(growth: Growth, outcome: str, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while growth.of("sangam_audits_total", cache_mode="dual", outcome=outcome) < count:  # noqa: ASYNC110  # polled
            await asyncio.sleep(0.01)


def test_agreement_counts_positions_and_what_only_one_answer_has() -> None:
    assert Agreement.of((1, 2, 3), (1, 2, 3)) == Agreement(same_tokens=3, different_tokens=0)
    assert Agreement.of((1, 2, 3, 4), (1, 9, 3)) == Agreement(same_tokens=2, different_tokens=2)
    assert Agreement.of((), (5,)) == Agreement(same_tokens=0, different_tokens=1)
    assert Agreement.of((1,), (1,)).equal and not Agreement.of((1,), ()).equal


def test_the_choice_depends_on_id_and_rate_alone_and_takes_the_share_it_says() -> None:
    ids = [f"gen-{index}" for index in range(20_000)]
    assert not any(is_chosen(name, 0.0) for name in ids)
    assert all(is_chosen(name, 1.0) for name in ids)
    few = {name for name in ids if is_chosen(name, 0.01)}
    # Binomial with 200 expected: five standard deviations are 70.
    assert 130 < len(few) < 270
    assert few == {name for name in ids if is_chosen(name, 0.01)}
    assert few <= {name for name in ids if is_chosen(name, 0.02)}, "a higher rate only adds"


async def test_an_audited_request_is_run_again_without_cache_as_an_idle_request(start_gateway, scheduler) -> None:
    growth = Growth()
    scheduler.script(ANSWER, ANSWER)
    async with start_gateway(audit_rate=1.0) as client:
        await client.generate(max_tokens=4, tenant="gold", priority=3)
        await until_ended(growth, "equal")
    live, audit = scheduler.requests
    assert (live.cache_mode, live.idle) == (types_pb2.CACHE_MODE_DUAL, False)
    assert (audit.cache_mode, audit.idle) == (types_pb2.CACHE_MODE_NONE, True)
    assert audit.request_id != live.request_id and not audit.request_id[0].isalnum(), "no client can have such an id"
    for field in ("prompt_token_ids", "max_tokens", "block_length_tokens", "sampling", "ignore_eos"):
        assert getattr(audit, field) == getattr(live, field), field
    assert growth.of("sangam_audit_tokens_total", cache_mode="dual", agreement="same") == 4
    assert growth.of("sangam_requests_total", outcome="length") == 1, "an audit is no request"


async def test_a_known_difference_is_counted_token_for_token(start_gateway, scheduler) -> None:
    growth = Growth()
    scheduler.script(ANSWER, play(queued(), step(0, 0, revealed_tokens(b"aXcY")), finished()))
    async with start_gateway(audit_rate=1.0) as client:
        await client.generate(max_tokens=4)
        await until_ended(growth, "different")
    assert growth.of("sangam_audit_tokens_total", cache_mode="dual", agreement="same") == 2
    assert growth.of("sangam_audit_tokens_total", cache_mode="dual", agreement="different") == 2


async def test_uncached_and_failed_requests_are_not_audited(start_gateway, scheduler) -> None:
    failing = play_then_raise(WireError(Reason.ATTEMPTS_EXHAUSTED, "no more"), queued())
    scheduler.script(ANSWER, failing)
    async with start_gateway(audit_rate=1.0) as client:
        await client.generate(max_tokens=4, cache_mode=types_pb2.CACHE_MODE_NONE)
        assert (await client.generate(max_tokens=4)).error is not None
        await asyncio.sleep(0.1)
    assert len(scheduler.requests) == 2


async def test_an_audit_that_fails_is_counted_and_the_next_one_runs(start_gateway, scheduler) -> None:
    growth = Growth()
    failing = play_then_raise(WireError(Reason.QUEUE_FULL, "too many idle ones"))
    scheduler.script(ANSWER, failing)
    async with start_gateway(audit_rate=1.0) as client:
        await client.generate(max_tokens=4)
        await until_ended(growth, "failed")
        scheduler.script(ANSWER, ANSWER)
        await client.generate(max_tokens=4)
        await until_ended(growth, "equal")


async def test_a_stopping_gateway_ends_the_audit_in_hand(start_gateway, scheduler) -> None:
    scheduler.script(ANSWER, play_then_hang(queued()))
    async with asyncio.timeout(20), start_gateway(audit_rate=1.0) as client:
        await client.generate(max_tokens=4)
        while len(scheduler.requests) < 2:  # noqa: ASYNC110  # the audit begins by itself
            await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        await scheduler.cancelled.wait()


class NeverAsked:
    """A scheduler that no audit gets to."""

    def schedule(self, spec: RequestSpec, *, timeout_s: float | None) -> Events:
        raise AssertionError("not asked")

    async def wait_until_serving(self, *, timeout_s: float) -> bool:
        raise AssertionError("not asked")


@pytest.mark.parametrize("more", [0, 3])
async def test_the_backlog_is_bounded_and_what_does_not_fit_is_counted(more: int) -> None:
    growth = Growth()
    auditor = Auditor(scheduler=NeverAsked(), rate=1.0, eos_token_id=0)
    for index in range(MAX_BACKLOG + more):
        auditor.offer(spec(f"r{index}"), (1, 2, 3, 4))
    assert value_of("sangam_audit_backlog") == MAX_BACKLOG
    assert growth.of("sangam_audits_total", cache_mode="dual", outcome="dropped") == more
