"""The scheduler service over real gRPC, with the real core and scripted workers."""

from __future__ import annotations

import asyncio

import pytest

from common.core.ids import Role, ServingMode
from common.errors import Reason, WireError
from common.rpc.convert import worker_spec_to_proto
from tests.scheduler_service.conftest import AddWorker, StartScheduler, make_request
from tests.scheduler_service.outcomes import collect, failure_of, revealed
from tests.scheduler_service.scripted import PAGES, ScriptedWorker, token_at, until


@pytest.mark.parametrize("kv_overlap", [False, True])
async def test_disaggregated_request_runs_block_by_block_to_its_end(
    start_scheduler: StartScheduler, add_worker: AddWorker, kv_overlap: bool
) -> None:
    scheduler = await start_scheduler(ServingMode.DISAGGREGATED, kv_overlap=kv_overlap)
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    events = await collect(scheduler.stub.Schedule(make_request()))
    assert events[0].WhichOneof("event") == "queued"
    assert revealed(events) == {position: token_at(position) for position in range(20)}
    placements = [event.block_committed for event in events if event.HasField("block_committed")]
    assert [placement.block for placement in placements] == [0, 1, 2]
    assert {placement.prefill_worker_id for placement in placements} == {"p"}
    assert {placement.decode_worker_id for placement in placements} == {"d"}
    assert [placement.transfer_bytes for placement in placements] == [1234] * 3
    assert events[-1].finished.finish_reason != 0
    assert decode.sources == ["remote"] * 3 and decode.early == 3 * kv_overlap
    # Each block's work carries exactly the earlier blocks.
    assert [len(work.generated_token_ids) for work in prefill.works] == [0, 8, 16]
    assert prefill.works[2].generated_token_ids == tuple(token_at(position) for position in range(16))
    await scheduler.until_idle()


async def test_a_workers_events_count_the_same_one_by_one_and_in_one_message(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler(ServingMode.DISAGGREGATED)
    await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    decode.gathers = True
    events = await collect(scheduler.stub.Schedule(make_request()))
    assert revealed(events) == {position: token_at(position) for position in range(20)}
    kinds = [event.WhichOneof("event") for event in events if event.WhichOneof("event") != "step"]
    assert kinds == ["queued", *["block_committed"] * 3, "finished"]
    placements = [event.block_committed for event in events if event.HasField("block_committed")]
    assert [placement.transfer_bytes for placement in placements] == [1234] * 3
    await scheduler.until_idle()


async def test_a_decode_worker_that_has_the_kv_goes_on_whatever_becomes_of_the_prefills_answer(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler(ServingMode.DISAGGREGATED, kv_overlap=True)
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d", Role.DECODE)
    prefill.gate.clear()
    events = await collect(scheduler.stub.Schedule(make_request()))
    assert revealed(events) == {position: token_at(position) for position in range(20)}
    assert len(prefill.works) == 3 and not prefill.cancelled.is_set()
    prefill.gate.set()
    await scheduler.until_idle()


async def test_an_early_decode_is_cancelled_when_the_prefill_completes_the_block(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler(kv_overlap=True)
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    prefill.gate.clear()
    decode.gate.clear()
    call = asyncio.create_task(collect(scheduler.stub.Schedule(make_request(max_tokens=1))))
    await asyncio.wait_for(decode.started.wait(), 10)
    prefill.gate.set()
    events = await call
    assert revealed(events) == {0: token_at(0)}
    assert [event.block_committed.attempts for event in events if event.HasField("block_committed")] == [1]
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    await scheduler.until_idle()


async def test_colocated_request_runs_on_decode_workers_alone(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler(ServingMode.COLOCATED)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    events = await collect(scheduler.stub.Schedule(make_request()))
    assert revealed(events) == {position: token_at(position) for position in range(20)}
    assert decode.sources == ["local_prefill"] * 3


async def test_block_that_its_prefill_completes_needs_no_decode(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    events = await collect(scheduler.stub.Schedule(make_request(max_tokens=1)))
    assert revealed(events) == {0: token_at(0)}
    assert decode.works == []
    await scheduler.until_idle()


async def test_live_request_id_is_refused_and_the_live_request_goes_on(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d", Role.DECODE)
    prefill.gate.clear()
    first = asyncio.create_task(collect(scheduler.stub.Schedule(make_request("same"))))
    await asyncio.wait_for(prefill.started.wait(), 10)
    other = make_request("same", max_tokens=21)
    assert (await failure_of(scheduler.stub.Schedule(other))).reason is Reason.DUPLICATE_REQUEST_ID
    prefill.gate.set()
    assert len(revealed(await first)) == 20


async def test_canvas_beyond_every_pool_is_refused_naming_the_field(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d", Role.DECODE)
    error = await failure_of(scheduler.stub.Schedule(make_request(max_tokens=PAGES * 16)))
    assert error.reason is Reason.TOO_LONG
    assert error.metadata["field"] == "max_tokens"


async def test_cancelled_client_cancels_the_worker_and_frees_the_pages(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    decode.gate.clear()
    call = scheduler.stub.Schedule(make_request())
    await call.read()
    await asyncio.wait_for(decode.started.wait(), 10)
    call.cancel()
    await asyncio.wait_for(decode.cancelled.wait(), 10)
    await scheduler.until_idle()


async def test_cancelled_decode_has_the_prefill_worker_release_its_kv(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    decode.gate.clear()
    call = scheduler.stub.Schedule(make_request("r"))
    await call.read()
    await asyncio.wait_for(decode.started.wait(), 10)
    call.cancel()
    await until(lambda: any(orders.release_kv for orders in prefill.orders))
    released = [attempt for orders in prefill.orders for attempt in orders.release_kv]
    assert [(attempt.request_id, attempt.block, attempt.attempt) for attempt in released] == [("r", 0, 0)]


async def test_deadline_ends_the_request_and_travels_to_the_worker(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d", Role.DECODE)
    prefill.gate.clear()
    error = await failure_of(scheduler.stub.Schedule(make_request(), timeout=0.5))
    assert error.reason is Reason.DEADLINE_EXCEEDED
    (timeout_s,) = prefill.timeouts_s
    assert timeout_s is not None and timeout_s < 0.5
    await asyncio.wait_for(prefill.cancelled.wait(), 10)
    await scheduler.until_idle()


async def test_calls_belong_to_the_trace_of_their_own_request(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    calls = [
        collect(scheduler.stub.Schedule(make_request(f"r{digit}"), metadata=[("traceparent", trace_parent(digit))]))
        for digit in (1, 2, 3)
    ]
    await asyncio.gather(*calls)
    for worker in (prefill, decode):
        assert len(worker.works) == 9
        for work, parent in zip(worker.works, worker.trace_parents, strict=True):
            digit = int(work.attempt.request_id[1:])
            assert parent.split("-")[1] == trace_parent(digit).split("-")[1]


def trace_parent(digit: int) -> str:
    """A W3C trace parent with a recognizable trace id."""
    return f"00-{str(digit) * 32}-{str(digit) * 16}-01"


async def test_worker_that_gives_no_status_of_ours_costs_an_attempt_not_the_request(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    # gRPC answers calls to such an address with a bare UNKNOWN, as it does when a stream is removed under a call.
    roomy = worker_spec_to_proto(ScriptedWorker("nowhere", Role.PREFILL).spec())
    roomy.address, roomy.pages_total = "dns:///", 10 * PAGES
    await scheduler.stub.RegisterWorker(roomy)
    await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d", Role.DECODE)
    responses = await collect(scheduler.stub.Schedule(make_request()))
    assert revealed(responses) == {position: token_at(position) for position in range(20)}
    placements = [response.block_committed for response in responses if response.HasField("block_committed")]
    assert placements[0].attempts == 2


@pytest.mark.parametrize("role", list(Role))
async def test_an_unlawful_answer_fails_the_request_with_a_trace_id_that_the_log_tells_more_of(
    role: Role, start_scheduler: StartScheduler, add_worker: AddWorker, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = await start_scheduler(ServingMode.DISAGGREGATED)
    workers = {worker.role: worker for worker in [await add_worker(scheduler, each.value, each) for each in Role]}
    workers[role].lies = True
    error = await failure_of(
        scheduler.stub.Schedule(make_request("wronged"), metadata=(("traceparent", trace_parent(7)),))
    )
    trace_id = trace_parent(7).split("-")[1]
    assert (error.reason, error.metadata["trace_id"]) == (Reason.INTERNAL, trace_id)
    assert error.message == f"internal error (trace {trace_id})"
    (line,) = [record.getMessage() for record in caplog.records if trace_id in record.getMessage()]
    assert "wronged" in line and f"{role.value} answered" in line and "waiting_prefill -> prefilling" in line
    await scheduler.until_idle()


async def test_lost_decode_worker_costs_an_attempt_not_the_request(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    dying = await add_worker(scheduler, "d1", Role.DECODE)
    dying.gate.clear()
    running = asyncio.create_task(collect(scheduler.stub.Schedule(make_request())))
    await asyncio.wait_for(dying.started.wait(), 10)
    await dying.leave()
    await add_worker(scheduler, "d2", Role.DECODE)
    events = await running
    assert revealed(events) == {position: token_at(position) for position in range(20)}
    placements = [event.block_committed for event in events if event.HasField("block_committed")]
    assert placements[0].attempts == 2
    assert {placement.decode_worker_id for placement in placements} == {"d2"}
    assert [work.attempt.attempt for work in prefill.works] == [0, 1, 0, 0]
    # The others were told of the life that ended.
    await until(lambda: any(life.worker_id == "d1" for orders in prefill.orders for life in orders.lost_peers))


async def test_refusal_for_memory_is_tried_again(start_scheduler: StartScheduler, add_worker: AddWorker) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    decode = await add_worker(scheduler, "d", Role.DECODE)
    decode.refusals.append(WireError(Reason.NO_KV_PAGES, "scripted"))
    events = await collect(scheduler.stub.Schedule(make_request(max_tokens=8)))
    assert len(revealed(events)) == 8
    # Same attempt, and the K/V that lies at the prefill worker is used.
    assert [work.attempt.attempt for work in decode.works] == [0, 0]
    assert len(prefill.works) == 1


async def test_stopping_scheduler_says_so_to_running_requests(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    prefill = await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d", Role.DECODE)
    prefill.gate.clear()
    running = asyncio.create_task(failure_of(scheduler.stub.Schedule(make_request())))
    await asyncio.wait_for(prefill.started.wait(), 10)
    scheduler.stop.set()
    assert (await running).reason is Reason.SCHEDULER_UNAVAILABLE
    await asyncio.wait_for(prefill.cancelled.wait(), 10)


async def test_many_requests_at_once_all_finish(start_scheduler: StartScheduler, add_worker: AddWorker) -> None:
    scheduler = await start_scheduler()
    await add_worker(scheduler, "p", Role.PREFILL)
    await add_worker(scheduler, "d1", Role.DECODE)
    await add_worker(scheduler, "d2", Role.DECODE)
    calls = [collect(scheduler.stub.Schedule(make_request(f"r{index}"))) for index in range(100)]
    for events in await asyncio.gather(*calls):
        assert len(revealed(events)) == 20
    await scheduler.until_idle()
