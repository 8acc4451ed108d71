"""One life of a worker serves one term: after a change of leader, nothing that the former one asked for counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from common.core.ids import Role
from common.core.params import ConfidenceQuota
from common.core.work import LocalPrefill
from common.errors import Reason
from common.rpc.status import wire_error
from tests.engine.runs import request
from tests.worker.harness import PAGES, Outcome, RunningWorker, block_work, read_decode, run_colocated, workers
from tests.worker.scripted_scheduler import SchedulerServer
from tests.worker.waiting import eventually

SPEC = request(tuple(range(1, 40)), strategy=ConfidenceQuota(4))
WORK = block_work(SPEC)


@asynccontextmanager
async def worker_of_two(role: Role) -> AsyncIterator[tuple[RunningWorker, SchedulerServer, SchedulerServer]]:
    """A worker that serves the first of two schedulers, in term 5; the second stands by for term 8."""
    first, second = SchedulerServer(), SchedulerServer()
    first.scheduler.term, second.scheduler.term = 5, 8
    await first.start()
    await second.start(leading=False)
    try:
        async with workers(role, first=first, scheduler_address=f"{first.address},{second.address}") as (worker,):
            yield worker, first, second
    finally:
        await first.stop()
        await second.stop()


async def reason_of(call: object) -> Reason:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_decode(call, Outcome())
    return wire_error(caught.value).reason


async def test_a_former_leader_that_stood_still_commands_the_worker_no_more() -> None:
    async with worker_of_two(Role.DECODE) as (worker, first, second):
        old = worker.app.life
        worker.engine.hold()
        call = worker.request_decode(WORK, LocalPrefill())
        await worker.engine.until_held()
        # The first one says nothing: its streams stay open, its health still says that it leads.
        await second.lead(True)
        await second.scheduler.until(lambda: bool(second.scheduler.heartbeats))
        (new,) = second.scheduler.registered
        assert new == worker.app.life and new.incarnation > old.incarnation
        assert await reason_of(call) is Reason.STALE_INCARNATION, "what the first one waits for has ended"
        late = worker.request_decode(WORK, LocalPrefill(), incarnation=old.incarnation)
        assert await reason_of(late) is Reason.STALE_INCARNATION, "and what it asks for now is refused"
        worker.engine.release()
        await eventually(lambda: worker.app.view().idle)
        assert len((await run_colocated(worker, SPEC)).token_ids) == 32
        assert first.scheduler.registered == [old]


async def test_kv_kept_for_a_lost_leader_goes_back_when_the_next_one_leads() -> None:
    async with worker_of_two(Role.PREFILL) as (worker, first, second):
        response = await worker.request_prefill(WORK)
        assert worker.app.view().free_pages == PAGES - response.kv.pages
        assert response.kv.lease_ms > 10_000, "far longer than this test waits"
        await first.stop()
        await second.lead(True)
        await second.scheduler.until(lambda: bool(second.scheduler.heartbeats))
        await eventually(lambda: worker.app.view().idle)
        assert worker.app.view().free_pages == PAGES


async def test_an_outage_of_every_scheduler_ends_no_work_and_no_worker() -> None:
    async with worker_of_two(Role.DECODE) as (worker, first, second):
        worker.engine.hold()
        call = worker.request_decode(WORK, LocalPrefill())
        await worker.engine.until_held()
        await first.stop()
        await asyncio.sleep(1.0)
        assert not worker.task.done()
        worker.engine.release()
        outcome = Outcome()
        await read_decode(call, outcome)
        assert len(outcome.token_ids) == 32
        await second.lead(True)
        await second.scheduler.until(lambda: bool(second.scheduler.heartbeats))


async def test_a_scheduler_of_a_lower_term_is_not_served() -> None:
    async with worker_of_two(Role.DECODE) as (worker, first, second):
        await first.lead(False)
        await second.lead(True)
        await second.scheduler.until(lambda: bool(second.scheduler.heartbeats))
        served = worker.app.life
        # It believes that it leads again, as after a pause; the one that really does steps aside for a moment.
        beats = len(first.scheduler.heartbeats)
        await second.lead(False)
        await first.lead(True)
        await first.scheduler.until(lambda: len(first.scheduler.registered) == 2)
        offered = first.scheduler.registered[1]
        assert offered.incarnation > served.incarnation, "as a life that has served no term"
        await eventually(lambda: worker.app.life.incarnation > offered.incarnation)
        refused = worker.request_decode(WORK, LocalPrefill(), incarnation=offered.incarnation)
        assert await reason_of(refused) is Reason.STALE_INCARNATION
        assert not [beat for beat in first.scheduler.heartbeats[beats:] if beat.life.incarnation > served.incarnation]
        await first.lead(False)
        await second.lead(True)
        await second.scheduler.until(lambda: second.scheduler.heartbeats[-1].life.incarnation > offered.incarnation)


async def test_a_former_leader_that_cannot_know_hears_of_its_successor_from_the_worker() -> None:
    async with worker_of_two(Role.DECODE) as (worker, first, second):
        served = worker.app.life
        await second.lead(True)
        await second.scheduler.until(lambda: bool(second.scheduler.heartbeats))
        # Its health goes on saying that it leads: it has lost Redis, say, and not its network.
        await first.scheduler.until(lambda: first.scheduler.met == 8)
        assert first.scheduler.registered == [served], "to tell is not to offer itself"
        assert second.scheduler.registered == [worker.app.life]


async def test_a_worker_learns_from_one_leader_that_the_other_is_of_a_higher_term() -> None:
    async with worker_of_two(Role.DECODE) as (worker, first, second):
        await second.lead(True)
        await second.scheduler.until(lambda: bool(second.scheduler.heartbeats))
        left = worker.app.life
        # The first one has led anew since, and from here that could not be seen.
        first.scheduler.term = 9
        await second.scheduler.until(lambda: second.scheduler.met == 9)
        await second.lead(False)
        await first.scheduler.until(lambda: first.scheduler.heartbeats[-1].life.incarnation > left.incarnation)
        late = worker.request_decode(WORK, LocalPrefill(), incarnation=left.incarnation)
        assert await reason_of(late) is Reason.STALE_INCARNATION
