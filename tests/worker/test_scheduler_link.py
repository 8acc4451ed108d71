"""A worker's tie to its scheduler: it outlives restarts, obeys orders, and does not chatter."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from common.core.defaults import DEFAULT_REPORT_INTERVAL_S
from common.core.ids import Role
from common.core.params import ConfidenceQuota
from common.core.work import IterationReport, LocalPrefill
from common.errors import Reason
from common.rpc.convert import block_attempt_to_proto, worker_life_to_proto
from common.rpc.status import wire_error
from common.worker.scheduler_link import SchedulerLink
from sangam.v1 import scheduler_pb2
from tests.engine.runs import request
from tests.worker.harness import Outcome, RunningWorker, block_work, read_decode, run_colocated, scheduler_of, workers
from tests.worker.scripted_scheduler import SchedulerServer
from tests.worker.waiting import eventually

SPEC = request(strategy=ConfidenceQuota(4))


def last_report(worker: RunningWorker) -> scheduler_pb2.HeartbeatRequest:
    return next(beat for beat in reversed(scheduler_of(worker).scheduler.heartbeats) if beat.HasField("report"))


async def test_a_worker_registers_what_it_is() -> None:
    async with workers(Role.PREFILL) as (prefill,):
        spec = prefill.app.spec()
        assert scheduler_of(prefill).scheduler.registered == [spec.life]
        assert (spec.role, spec.pages_total, spec.page_size_tokens) == (Role.PREFILL, 64, 16)
        assert (spec.model_id, spec.max_canvas_tokens) == ("llada-gqa", 512)
        assert spec.kv_transport == "direct+ucx"
        for address in (spec.address, spec.kv_address):
            host, _, port = address.rpartition(":")
            assert host == "127.0.0.1" and int(port) > 0


async def test_a_scheduler_restart_costs_the_worker_nothing() -> None:
    async with workers(Role.DECODE) as (decode,):
        life, old = decode.app.life, scheduler_of(decode)
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        await old.stop()
        new = SchedulerServer()
        await new.start(int(old.address.rpartition(":")[2]))
        try:
            await new.scheduler.until(lambda: bool(new.scheduler.heartbeats))
            assert new.scheduler.registered == [life]
            decode.engine.release()
            outcome = Outcome()
            await read_decode(call, outcome)
            assert len(outcome.token_ids) == 32
            await new.scheduler.until(lambda: any(beat.HasField("report") for beat in new.scheduler.heartbeats))
            await decode.close()
        finally:
            await new.stop()


async def test_a_draining_worker_does_not_offer_itself_to_a_restarted_scheduler() -> None:
    async with workers(Role.DECODE) as (decode,):
        old = scheduler_of(decode)
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        decode.stop.set()
        await old.scheduler.until(lambda: old.scheduler.heartbeats[-1].draining)
        await old.stop()
        new = SchedulerServer()
        await new.start(int(old.address.rpartition(":")[2]))
        try:
            # Longer than a willing worker's first pauses: see the test of the restart above.
            await asyncio.sleep(1.0)
            decode.engine.release()
            outcome = Outcome()
            await read_decode(call, outcome)
            assert len(outcome.token_ids) == 32, "what it had, it finished"
            await decode.task
            assert new.scheduler.registered == []
        finally:
            await new.stop()


async def test_a_life_that_the_scheduler_ended_is_followed_by_a_newer_one() -> None:
    async with workers(Role.DECODE) as (decode,):
        scheduler, old = scheduler_of(decode).scheduler, decode.app.life
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        scheduler.end_life(old)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_decode(call, Outcome())
        assert wire_error(caught.value).reason is Reason.STALE_INCARNATION
        await scheduler.until(lambda: len(scheduler.registered) == 2)
        assert scheduler.registered[1] == decode.app.life
        assert decode.app.life.worker_id == old.worker_id
        assert decode.app.life.incarnation > old.incarnation
        decode.engine.release()
        await eventually(lambda: decode.app.view().idle)
        assert len((await run_colocated(decode, SPEC)).token_ids) == 32


async def test_a_worker_whose_clock_was_set_back_takes_the_incarnation_that_the_scheduler_names() -> None:
    async with workers(Role.DECODE) as (decode,):
        scheduler, old = scheduler_of(decode).scheduler, decode.app.life
        scheduler.least_incarnation = old.incarnation + 3600 * 10**9
        scheduler.end_life(old)
        await scheduler.until(lambda: len(scheduler.registered) == 2)
        assert scheduler.registered[1].incarnation == scheduler.least_incarnation
        assert len((await run_colocated(decode, SPEC)).token_ids) == 32


async def test_lives_that_end_at_once_follow_each_other_ever_more_slowly() -> None:
    async with workers(Role.DECODE) as (decode,):
        scheduler, loop = scheduler_of(decode).scheduler, asyncio.get_running_loop()

        def newest_is_heard() -> bool:
            newest = worker_life_to_proto(scheduler.registered[-1])
            return scheduler.registered[-1] not in scheduler.ended and any(
                beat.life == newest for beat in scheduler.heartbeats
            )

        started_s = loop.time()
        for _ in range(5):
            await scheduler.until(newest_is_heard)
            scheduler.end_life(scheduler.registered[-1])
        await scheduler.until(newest_is_heard)
        # Pauses of 0.1, 0.2, 0.4, 0.8 and 1.6 s, each shortened by up to a half.
        assert loop.time() - started_s >= 1.5


async def test_released_kv_is_given_up_and_said_to_be_gone() -> None:
    async with workers(Role.PREFILL) as (prefill,):
        scheduler, work = scheduler_of(prefill).scheduler, block_work(SPEC)
        await prefill.request_prefill(work)
        assert prefill.app.view().retained == (work.attempt,)
        attempt = block_attempt_to_proto(work.attempt)
        scheduler.order("prefill-0", scheduler_pb2.HeartbeatResponse(release_kv=[attempt]))
        await scheduler.until(lambda: any(attempt in beat.kv_ended for beat in scheduler.heartbeats))
        assert prefill.app.view().idle


async def test_kv_released_before_it_is_there_is_never_kept() -> None:
    """A cancelled prefill ends after the scheduler's word of release and before the end of its call."""
    async with workers(Role.PREFILL) as (prefill,):
        scheduler, work = scheduler_of(prefill).scheduler, block_work(SPEC)
        prefill.engine.hold()
        call = prefill.request_prefill(work)
        await prefill.engine.until_held()
        order = scheduler_pb2.HeartbeatResponse(release_kv=[block_attempt_to_proto(work.attempt)])
        scheduler.order("prefill-0", order)
        await eventually(lambda: prefill.app.view().zombies == (work.attempt,))
        prefill.engine.release()
        await eventually(lambda: prefill.app.view().idle)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not prefill.app.view().retained


async def test_a_lease_that_runs_out_is_said_to_be_gone() -> None:
    async with workers(Role.PREFILL, kv_lease_s=0.05) as (prefill,):
        scheduler, work = scheduler_of(prefill).scheduler, block_work(SPEC)
        response = await prefill.request_prefill(work)
        assert response.kv.lease_ms == 50
        attempt = block_attempt_to_proto(work.attempt)
        await scheduler.until(lambda: any(attempt in beat.kv_ended for beat in scheduler.heartbeats))
        assert prefill.app.view().idle


async def test_the_drain_order_ends_the_worker_and_is_announced() -> None:
    async with workers(Role.DECODE) as (decode,):
        scheduler = scheduler_of(decode).scheduler
        decode.engine.hold()
        call = decode.request_decode(block_work(SPEC), LocalPrefill())
        await decode.engine.until_held()
        scheduler.order("decode-0", scheduler_pb2.HeartbeatResponse(drain=True))
        await scheduler.until(lambda: scheduler.heartbeats[-1].draining)
        decode.engine.release()
        outcome = Outcome()
        await read_decode(call, outcome)
        assert len(outcome.token_ids) == 32
        await decode.task


async def test_reports_tell_what_the_worker_did() -> None:
    async with workers(Role.DECODE) as (decode,):
        scheduler = scheduler_of(decode).scheduler
        outcome = await run_colocated(decode, SPEC)
        forwards = outcome.prefill_forwards + outcome.decode_forwards
        await scheduler.until(lambda: any(beat.report.iteration == forwards for beat in scheduler.heartbeats))
        report = last_report(decode).report
        assert (report.free_pages, report.active_decodes, report.queued_prefills) == (64, 0, 0)


class Listener:
    """`SchedulerOrders` of a worker that expects none."""

    def __init__(self, worker: RunningWorker) -> None:
        self.spec = worker.app.spec

    async def on_registered(self) -> None:
        """Nothing follows."""

    def unexpected(self, *order: object) -> None:
        raise AssertionError(order)

    on_life_ended = on_release_kv = on_drain = on_peer_lost = unexpected


async def test_a_burst_of_reports_becomes_its_newest() -> None:
    async with workers(Role.DECODE) as (decode,):
        server = SchedulerServer()
        await server.start()
        link = SchedulerLink(addresses=[server.address], orders=Listener(decode))
        task = asyncio.create_task(link.run())
        await server.scheduler.until(lambda: bool(server.scheduler.heartbeats))
        for iteration in range(1, 1001):
            link.report(report(iteration))
        beats = server.scheduler.heartbeats
        await server.scheduler.until(lambda: any(beat.report.iteration == 1000 for beat in beats))
        assert [beat.report.iteration for beat in beats if beat.HasField("report")] == [1000]
        # Nor does a steady stream of them become one of messages: the interval between two is kept.
        loop = asyncio.get_running_loop()
        started_s, heard = loop.time(), len(beats)
        for iteration in range(1001, 1101):
            link.report(report(iteration))
            await asyncio.sleep(0.002)
        await server.scheduler.until(lambda: any(beat.report.iteration == 1100 for beat in beats))
        assert len(beats) - heard <= (loop.time() - started_s) / DEFAULT_REPORT_INTERVAL_S + 2
        # With nothing new to say, a bare keepalive follows.
        heard = len(beats)
        await server.scheduler.until(lambda: len(beats) > heard)
        assert not beats[-1].HasField("report")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()


def report(iteration: int) -> IterationReport:
    return IterationReport(
        iteration=iteration,
        duration_s=0.001,
        decode_tokens=32,
        prefill_tokens_admitted=0,
        deficit_tokens=0,
        free_pages=64,
        active_decodes=1,
        queued_prefills=0,
        queued_prefill_tokens=0,
        retained_blocks=0,
    )
