"""Workers come, go, are refused and drained, as the scheduler service sees them over real gRPC."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from common.core.ids import BlockAttempt, RequestId, Role, ServingMode, WorkerId, WorkerLife
from common.errors import Reason
from common.rpc.convert import block_attempt_to_proto, worker_life_to_proto, worker_spec_to_proto
from common.rpc.server import RpcServer
from common.rpc.status import wire_error
from sangam.v1 import scheduler_pb2
from tests.scheduler_service.conftest import AddWorker, StartScheduler, make_request
from tests.scheduler_service.outcomes import collect, revealed
from tests.scheduler_service.scripted import ScriptedRegistry, ScriptedWorker, until


async def test_silent_worker_is_lost(start_scheduler: StartScheduler, add_worker: AddWorker) -> None:
    scheduler = await start_scheduler(heartbeat_timeout_s=0.4)
    worker = await add_worker(scheduler, "p", Role.PREFILL)
    assert len((await scheduler.state()).workers) == 1
    worker.speaking = False
    await scheduler.until_no_worker()
    # Its own stream tells it so, and the ended life may not come back.
    await until(lambda: worker.heartbeat_ended_with is grpc.StatusCode.FAILED_PRECONDITION)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.stub.RegisterWorker(worker_spec_to_proto(worker.spec()))
    assert wire_error(caught.value).reason is Reason.STALE_INCARNATION


@pytest.mark.parametrize("busy", [False, True])
async def test_a_scheduler_that_stood_still_takes_nobody_for_silent(
    start_scheduler: StartScheduler, add_worker: AddWorker, busy: bool
) -> None:
    scheduler = await start_scheduler(ServingMode.COLOCATED, heartbeat_timeout_s=0.5)
    worker = await add_worker(scheduler, "w", Role.DECODE)
    worker.gate.clear()
    call = asyncio.create_task(collect(scheduler.stub.Schedule(make_request())))
    if busy:
        await worker.started.wait()
    time.sleep(1.5)  # noqa: ASYNC251  # all that is in this process: as SIGSTOP, or a machine with too much to do
    worker.gate.set()
    # Were its worker lost, the request would wait for another, for ever.
    assert sorted(revealed(await asyncio.wait_for(call, 10.0))) == list(range(20))
    assert worker.heartbeat_ended_with is None
    # Whom it can hear it still notices when silent.
    worker.speaking = False
    await scheduler.until_no_worker()


async def test_registered_worker_that_never_speaks_is_lost(
    start_scheduler: StartScheduler,
) -> None:
    scheduler = await start_scheduler(heartbeat_timeout_s=0.3)
    mute = ScriptedWorker("mute", Role.DECODE)
    spec = worker_spec_to_proto(mute.spec())
    spec.address = "127.0.0.1:9"
    await scheduler.stub.RegisterWorker(spec)
    await scheduler.until_no_worker()


async def test_newer_incarnation_takes_the_place_of_the_older(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    older = await add_worker(scheduler, "p", Role.PREFILL, incarnation=5)
    await add_worker(scheduler, "p", Role.PREFILL, incarnation=6)
    assert [worker.life.incarnation for worker in (await scheduler.state()).workers] == [6]
    await until(lambda: older.heartbeat_ended_with is grpc.StatusCode.FAILED_PRECONDITION)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.stub.RegisterWorker(worker_spec_to_proto(older.spec()))
    refusal = wire_error(caught.value)
    assert refusal.reason is Reason.STALE_INCARNATION
    # What a worker needs whose clock was set back: a further life, not the one that lives.
    assert refusal.metadata["least_incarnation"] == "7"


async def test_worker_with_other_weights_is_refused_while_one_with_the_first_lives(
    start_scheduler: StartScheduler,
) -> None:
    scheduler = await start_scheduler(heartbeat_timeout_s=0.5)

    async def register(worker_id: str, weights: str) -> None:
        message = worker_spec_to_proto(ScriptedWorker(worker_id, Role.DECODE).spec())
        message.address, message.model_fingerprint = "127.0.0.1:9", weights
        await scheduler.stub.RegisterWorker(message)

    await register("first", "old")
    await register("second", "old")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await register("third", "new")
    assert wire_error(caught.value).reason is Reason.LAYOUT_MISMATCH
    assert [worker.life.worker_id for worker in (await scheduler.state()).workers] == ["first", "second"]
    # Nobody heartbeats here: soon the first weights are gone, and the new ones may come.
    await scheduler.until_no_worker()
    await register("third", "new")
    assert [worker.life.worker_id for worker in (await scheduler.state()).workers] == ["third"]


async def test_registering_a_living_life_again_changes_nothing(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    worker = await add_worker(scheduler, "p", Role.PREFILL)
    answer = await scheduler.stub.RegisterWorker(worker_spec_to_proto(worker.spec()))
    assert answer.heartbeat_timeout_ms == 3000
    assert len((await scheduler.state()).workers) == 1
    assert worker.heartbeat_ended_with is None


async def test_heartbeat_of_an_unknown_life_is_refused(start_scheduler: StartScheduler) -> None:
    scheduler = await start_scheduler()
    call = scheduler.stub.Heartbeat()
    life = worker_life_to_proto(WorkerLife(WorkerId("ghost"), 1))
    await call.write(scheduler_pb2.HeartbeatRequest(life=life))
    assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_malformed_heartbeat_ends_its_own_stream_only(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    worker = await add_worker(scheduler, "p", Role.PREFILL)
    attempt = block_attempt_to_proto(BlockAttempt(RequestId("r"), 0, 0))
    attempt.request_id = ""
    await worker.say(scheduler_pb2.HeartbeatRequest(kv_ended=[attempt]))
    await until(lambda: worker.heartbeat_ended_with is grpc.StatusCode.INVALID_ARGUMENT)
    assert (await scheduler.state()).mode != 0


async def test_drained_worker_is_told_and_gets_nothing_new(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler(ServingMode.COLOCATED)
    drained = await add_worker(scheduler, "a", Role.DECODE)
    other = await add_worker(scheduler, "b", Role.DECODE)
    await scheduler.stub.DrainWorker(scheduler_pb2.DrainWorkerRequest(worker_id="a"))
    await scheduler.stub.DrainWorker(scheduler_pb2.DrainWorkerRequest(worker_id="a"))
    await until(lambda: any(orders.drain for orders in drained.orders))
    await collect(scheduler.stub.Schedule(make_request()))
    assert drained.works == []
    assert len(other.works) == 3
    assert [worker.draining for worker in (await scheduler.state()).workers] == [True, False]


async def test_draining_an_unknown_worker_names_those_there_are(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler()
    await add_worker(scheduler, "p", Role.PREFILL)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.stub.DrainWorker(scheduler_pb2.DrainWorkerRequest(worker_id="x"))
    error = wire_error(caught.value)
    assert error.reason is Reason.WORKER_NOT_FOUND
    assert "registered: p" in error.message


async def test_registry_hears_of_ended_lives_even_if_it_fails_at_first(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    registry = ScriptedRegistry(failures=2)
    server = RpcServer(service_names=[])
    registry.add_to(server)
    address = await server.start("127.0.0.1", 0)
    try:
        scheduler = await start_scheduler(kv_store_address=address)
        worker = await add_worker(scheduler, "p", Role.PREFILL, incarnation=7)
        await worker.leave()
        await until(lambda: registry.fenced == [("p", 7)])
    finally:
        await server.stop(0.0)


async def test_dead_registry_does_not_hold_requests_up(start_scheduler: StartScheduler, add_worker: AddWorker) -> None:
    scheduler = await start_scheduler(ServingMode.COLOCATED, kv_store_address="127.0.0.1:9")
    await (await add_worker(scheduler, "gone", Role.DECODE)).leave()
    await add_worker(scheduler, "d", Role.DECODE)
    events = await collect(scheduler.stub.Schedule(make_request()))
    assert len(revealed(events)) == 20
