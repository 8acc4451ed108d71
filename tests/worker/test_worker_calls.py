"""How Prefill and Decode calls end when something is wrong, or when somebody leaves: pages always come back."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.core.ids import BlockAttempt, RequestId, Role, WorkerId, WorkerLife
from common.core.params import CacheMode, ConfidenceQuota
from common.core.work import BlockWork, KvHandle, KvSource, LocalPrefill, NoKv, RemoteKv, StepDelta
from common.core.worker import WorkerCore
from common.core.worker_events import IterationCompleted
from common.errors import Reason
from common.rpc.status import wire_error
from common.worker.forward_watch import ForwardStuck
from sangam.v1 import types_pb2
from tests.engine.runs import request
from tests.worker.harness import (
    PAGES,
    Outcome,
    RunningWorker,
    block_work,
    read_decode,
    run_colocated,
    run_disaggregated,
    scheduler_of,
    workers,
)
from tests.worker.waiting import PATIENCE_S, eventually

SPEC = request(strategy=ConfidenceQuota(4))
FIRST = StepDelta(step=0, positions=(0,), token_ids=(7,), confidences=(0.5,))
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def refusal(call: Any) -> tuple[Reason, str]:
    """Why `call` ended, and the field it blames."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    error = wire_error(caught.value)
    return error.reason, error.metadata.get("field", "")


async def health(worker: RunningWorker) -> int:
    reply = await health_pb2_grpc.HealthStub(worker.channel).Check(health_pb2.HealthCheckRequest())
    return int(reply.status)


def named(name: str, **changes: Any) -> BlockWork:
    return block_work(request(request_id=RequestId(name), strategy=ConfidenceQuota(4), **changes))


async def test_a_cancelled_decode_gives_its_pages_back_with_the_iteration_it_is_in() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        assert decode.app.view().free_pages < PAGES
        call.cancel()
        await eventually(lambda: bool(decode.app.view().zombies))
        assert decode.app.view().free_pages < PAGES, "the forward still writes to them"
        decode.engine.release()
        await eventually(lambda: decode.app.view().idle)
        assert decode.app.view().iterations == 1


async def test_a_cancelled_prefill_gives_its_pages_back_with_the_iteration_it_is_in() -> None:
    async with workers(Role.PREFILL) as (prefill,):
        prefill.engine.hold()
        call = prefill.request_prefill(block_work(SPEC))
        await prefill.engine.until_held()
        call.cancel()
        await eventually(lambda: bool(prefill.app.view().zombies))
        prefill.engine.release()
        await eventually(lambda: prefill.app.view().idle)
        assert not prefill.app.view().retained


async def test_a_call_cancelled_in_the_queue_leaves_at_once() -> None:
    async with workers(Role.PREFILL) as (prefill,):
        prefill.engine.hold()
        running = prefill.request_prefill(named("a", cache_mode=CacheMode.NONE))
        await prefill.engine.until_held()
        queued = prefill.request_prefill(named("b"))
        await eventually(lambda: len(prefill.app.view().queued_prefills) == 1)
        queued.cancel()
        await eventually(lambda: not prefill.app.view().queued_prefills)
        prefill.engine.release()
        await running
        assert prefill.app.view().iterations == 1


async def test_a_deadline_ends_the_work_like_a_cancellation() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        work = block_work(SPEC)
        call = decode.request_decode(work, LocalPrefill(), timeout_s=0.2)
        assert (await refusal(call))[0] is Reason.DEADLINE_EXCEEDED
        decode.engine.release()
        await eventually(lambda: decode.app.view().idle)


async def test_fifty_disconnects_at_random_moments_leave_nothing_behind() -> None:
    async with workers(Role.DECODE) as (decode,):
        for index in range(50):
            call = decode.request_decode(named(f"r{index}"), LocalPrefill())
            if index % 3:
                await call.read()
            if index % 3 == 2:
                await asyncio.sleep(0.001 * (index % 7))
            call.cancel()
        await eventually(lambda: decode.app.view().idle)
        outcome = await run_colocated(decode, SPEC)
        assert len(outcome.token_ids) == 32


async def test_work_for_another_life_is_refused() -> None:
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        earlier = prefill.app.life.incarnation - 1
        assert (await refusal(prefill.request_prefill(block_work(SPEC), incarnation=earlier)))[0] is (
            Reason.STALE_INCARNATION
        )
        call = decode.request_decode(block_work(SPEC), LocalPrefill(), incarnation=earlier)
        assert (await refusal(call))[0] is Reason.STALE_INCARNATION


async def test_a_second_call_for_a_live_attempt_is_refused_and_the_first_goes_on() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        work, outcome = block_work(SPEC), Outcome()
        first = decode.request_decode(work, LocalPrefill())
        await decode.engine.until_held()
        assert (await refusal(decode.request_decode(work, LocalPrefill())))[0] is Reason.STALE_ATTEMPT
        decode.engine.release()
        await read_decode(first, outcome)
        assert len(outcome.token_ids) == 32


async def test_a_newer_attempt_takes_the_place_of_an_older_one() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        old = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        new = decode.request_decode(block_work(SPEC, attempt=1), LocalPrefill())
        assert (await refusal(old))[0] is Reason.STALE_ATTEMPT
        assert (await refusal(decode.request_decode(block_work(SPEC), LocalPrefill())))[0] is Reason.STALE_ATTEMPT
        decode.engine.release()
        outcome = Outcome()
        await read_decode(new, outcome)
        assert len(outcome.token_ids) == 32


def handle(worker: RunningWorker, work: BlockWork, **changes: Any) -> RemoteKv:
    """A K/V source that fits `worker` and `work` but for `changes`; nobody listens at its address."""
    fitting = KvHandle(
        attempt=work.attempt,
        owner=WorkerLife(WorkerId("prefill-0"), 1),
        transport="tcp",
        address="127.0.0.1:1",
        layout_fingerprint=worker.app.spec().layout_fingerprint,
        canvas_tokens=work.canvas_tokens,
        pages=work.pages(16),
        lease_s=5.0,
    )
    return RemoteKv(handle=dataclasses.replace(fitting, **changes), first=FIRST)


async def test_work_that_the_model_cannot_run_is_refused_before_any_compute() -> None:
    async with workers(Role.DECODE, kv_pages=20) as (decode,):
        local = LocalPrefill()
        late_first = dataclasses.replace(FIRST, positions=(40,))
        masked_first = dataclasses.replace(FIRST, token_ids=(511,))
        second_step = dataclasses.replace(FIRST, step=1)
        work, uncached = named("a"), named("a", cache_mode=CacheMode.NONE)
        with_mask = dataclasses.replace(
            named("a", max_tokens=64), attempt=BlockAttempt(RequestId("a"), 1, 0), generated_token_ids=(511,) * 32
        )
        cases: list[tuple[BlockWork, KvSource, Reason, str]] = [
            (named("a", prompt=(1, 511)), local, Reason.INVALID_PROMPT, "prompt_token_ids"),
            (named("a", prompt=(1, 512)), local, Reason.INVALID_PROMPT, "prompt_token_ids"),
            (with_mask, local, Reason.INVALID_PROMPT, "generated_token_ids"),
            (named("a", max_tokens=600), local, Reason.TOO_LONG, "max_tokens"),
            (named("a", max_tokens=384), local, Reason.NO_KV_PAGES, ""),
            (work, NoKv(first=FIRST), Reason.INVALID_REQUEST, "kv_source"),
            (uncached, NoKv(first=late_first), Reason.INVALID_REQUEST, "first.positions"),
            (uncached, NoKv(first=masked_first), Reason.INVALID_PROMPT, "first.token_ids"),
            (uncached, NoKv(first=second_step), Reason.INVALID_REQUEST, "first.step"),
            (work, handle(decode, work, layout_fingerprint="ab"), Reason.LAYOUT_MISMATCH, ""),
            (work, handle(decode, work, transport="carrier pigeon"), Reason.LAYOUT_MISMATCH, ""),
            (work, handle(decode, work, pages=1), Reason.INVALID_REQUEST, "handle.pages"),
            (work, handle(decode, named("b")), Reason.INVALID_REQUEST, "handle.attempt"),
        ]
        for bad, source, reason, field in cases:
            assert await refusal(decode.request_decode(bad, source)) == (reason, field), (reason, field)
        assert decode.app.view().iterations == 0


async def test_an_owner_that_is_gone_ends_the_call_as_peer_lost() -> None:
    async with workers(Role.DECODE) as (decode,):
        work = block_work(SPEC)
        assert (await refusal(decode.request_decode(work, handle(decode, work))))[0] is Reason.PEER_LOST
        await eventually(lambda: decode.app.view().idle)


async def test_health_is_answered_in_the_middle_of_a_forward() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        assert await health(decode) == SERVING
        assert decode.app.view().running_iteration == 1, "the forward has not ended meanwhile"
        decode.engine.release()
        await read_decode(call, Outcome())


async def test_a_draining_worker_refuses_new_work_and_finishes_what_it_has() -> None:
    async with workers(Role.DECODE) as (decode,):
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        decode.stop.set()
        await scheduler_of(decode).scheduler.until(lambda: scheduler_of(decode).scheduler.heartbeats[-1].draining)
        assert await health(decode) == NOT_SERVING
        late = decode.request_decode(named("late"), LocalPrefill())
        assert (await refusal(late))[0] is Reason.WORKER_DRAINING
        decode.engine.release()
        outcome = Outcome()
        await read_decode(call, outcome)
        assert len(outcome.token_ids) == 32


async def test_a_forward_that_raises_ends_the_worker_and_every_call_on_it() -> None:
    async with workers(Role.DECODE, may_fail=True) as (decode,):
        decode.engine.hold()
        running = decode.request_decode(named("a"), LocalPrefill())
        await decode.engine.until_held()
        queued = decode.request_decode(named("b"), LocalPrefill())
        await eventually(lambda: len(decode.app.view().queued_prefills) == 1)
        decode.engine.fault = ZeroDivisionError("a broken kernel")
        decode.engine.release()
        for call in (running, queued):
            assert (await refusal(call))[0] is Reason.PEER_LOST
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(decode.task, PATIENCE_S)
        assert caught.value.subgroup(ZeroDivisionError) is not None


async def test_a_forward_that_hangs_ends_the_worker_and_every_call_on_it() -> None:
    async with workers(Role.DECODE, may_fail=True, stuck_forward_s=0.1) as (decode,):
        decode.engine.hold()
        running = decode.request_decode(named("a"), LocalPrefill())
        queued = decode.request_decode(named("b"), LocalPrefill())
        for call in (running, queued):
            assert (await refusal(call))[0] is Reason.PEER_LOST
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(decode.task, PATIENCE_S)
        assert caught.value.subgroup(ForwardStuck) is not None
        assert not decode.engine.is_released, "the worker did not wait for the forward to end"


@pytest.mark.parametrize("limit_s", [0.0, PATIENCE_S])
async def test_a_forward_within_its_limit_is_left_alone(limit_s: float) -> None:
    async with workers(Role.DECODE, stuck_forward_s=limit_s) as (decode,):
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        await asyncio.sleep(0.2)
        decode.engine.release()
        outcome = Outcome()
        await read_decode(call, outcome)
        assert len(outcome.token_ids) == 32


async def test_a_bug_in_the_core_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    handle_event = WorkerCore.handle

    def broken(core: WorkerCore, event: Any, now: float) -> list[Any]:
        if isinstance(event, IterationCompleted):
            raise KeyError("a lost block")
        return handle_event(core, event, now)

    monkeypatch.setattr(WorkerCore, "handle", broken)
    async with workers(Role.DECODE, may_fail=True) as (decode,):
        assert (await refusal(decode.request_decode(named("a"), LocalPrefill())))[0] is Reason.PEER_LOST
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(decode.task, PATIENCE_S)
        assert caught.value.subgroup(KeyError) is not None


def step_bytes(outcome: Outcome) -> list[int]:
    return [event.ByteSize() for event in outcome.events if event.WhichOneof("event") == "step"]


async def test_a_step_message_is_as_small_on_a_long_canvas_as_on_a_short_one() -> None:
    async with workers(Role.DECODE) as (decode,):
        short = await run_colocated(decode, request((5,) * 32, strategy=ConfidenceQuota(1)))
        long = await run_colocated(decode, request((5,) * 416, strategy=ConfidenceQuota(1)))
    assert len(step_bytes(short)) == len(step_bytes(long)) == 32
    # One position: its number, a token id of one or two bytes, a float, step number, field tags and lengths.
    assert max(step_bytes(long)) <= max(step_bytes(short)) <= 20


async def test_no_cache_needs_no_transfer() -> None:
    spec = request((5,) * 20, max_tokens=40, cache_mode=CacheMode.NONE, strategy=ConfidenceQuota(8))
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        apart = await run_disaggregated(prefill, decode, spec)
        assert not any(event.HasField("kv_received") for event in apart.events)
        assert not prefill.app.view().retained
        together = await run_colocated(decode, dataclasses.replace(spec, request_id=RequestId("again")))
    assert apart.token_ids == together.token_ids
    assert (apart.prefill_forwards, apart.decode_forwards) == (2, 6)
    assert apart.finish == types_pb2.FINISH_REASON_LENGTH
