"""Terms as a scheduler keeps them: who is refused, what a standby answers, what a change of leader does to streams."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.core.ids import Role, ServingMode
from common.errors import Reason, WireError
from common.rpc.channel import open_channel
from common.rpc.convert import worker_life_to_proto, worker_spec_to_proto
from common.rpc.leader_watch import SERVICE
from common.rpc.status import wire_error
from sangam.v1 import scheduler_pb2
from tests.chaos.wire import Wire
from tests.redis_server import RedisServer
from tests.scheduler_service.conftest import AddWorker, Scheduler, StartScheduler, make_request
from tests.scheduler_service.outcomes import collect, failure_of, revealed
from tests.scheduler_service.scripted import ScriptedWorker, until

PATIENCE_S = 30.0
_STATE = scheduler_pb2.GetClusterStateRequest()
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def lease(redis_server: RedisServer) -> dict[str, Any]:
    """Settings that make a scheduler one of several."""
    return {"mode": ServingMode.COLOCATED, "leader_lease": redis_server.url}


async def health_of(scheduler: Scheduler, service: str) -> Any:
    async with open_channel(scheduler.address) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status


async def until_leading(scheduler: Scheduler) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await health_of(scheduler, SERVICE) != SERVING:  # noqa: ASYNC110  # asked: what a probe sees
            await asyncio.sleep(0.02)


async def refusal(call: Any) -> WireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return wire_error(caught.value)


def registration(worker: ScriptedWorker, **terms: int) -> scheduler_pb2.RegisterWorkerRequest:
    request = worker_spec_to_proto(worker.spec())
    request.address = "127.0.0.1:9"
    for field, term in terms.items():
        setattr(request, field, term)
    return request


async def test_a_standby_refuses_everything_by_one_reason_until_it_leads(
    start_scheduler: StartScheduler, lease: dict[str, Any]
) -> None:
    leader = await start_scheduler(**lease)
    await until_leading(leader)
    standby = await start_scheduler(**lease)
    assert await health_of(leader, SERVICE) == await health_of(leader, "") == SERVING
    assert (await health_of(standby, SERVICE), await health_of(standby, "")) == (NOT_SERVING, SERVING)
    worker = ScriptedWorker("w", Role.DECODE)
    beat = standby.stub.Heartbeat()
    await beat.write(scheduler_pb2.HeartbeatRequest(life=worker_life_to_proto(worker.life)))
    calls = [
        collect(standby.stub.Schedule(make_request())),
        beat.read(),
        standby.stub.CancelSchedule(scheduler_pb2.CancelScheduleRequest(request_id="r")),
        standby.stub.RegisterWorker(registration(worker)),
        standby.stub.GetClusterState(scheduler_pb2.GetClusterStateRequest()),
        standby.stub.DrainWorker(scheduler_pb2.DrainWorkerRequest(worker_id="w")),
    ]
    for call in calls:
        refused = await refusal(call)
        assert refused.reason is Reason.NOT_LEADER
        assert refused.metadata == {"leader": leader.address}


@pytest.mark.parametrize(("given", "named"), [("", "127.0.0.1"), ("leader.example", "leader.example")])
async def test_a_leader_that_listens_everywhere_is_named_as_others_reach_it(
    start_scheduler: StartScheduler, lease: dict[str, Any], given: str, named: str
) -> None:
    leader = await start_scheduler(**lease, host="0.0.0.0", advertise_host=given)
    await until_leading(leader)
    standby = await start_scheduler(**lease)
    async with asyncio.timeout(PATIENCE_S):
        while not (refused := await refusal(standby.stub.GetClusterState(_STATE))).metadata:  # noqa: ASYNC110  # asked
            await asyncio.sleep(0.02)
    assert refused.reason is Reason.NOT_LEADER
    assert refused.metadata == {"leader": f"{named}:{leader.address.rpartition(':')[2]}"}


async def test_a_leader_that_is_told_to_stop_hands_over_at_once(
    start_scheduler: StartScheduler, add_worker: AddWorker, lease: dict[str, Any]
) -> None:
    leader = await start_scheduler(**lease, leader_lease_s=3600.0)
    await until_leading(leader)
    standby = await start_scheduler(**lease, leader_lease_s=3600.0)
    worker = await add_worker(leader, "w", Role.DECODE)
    worker.gate.clear()
    call = leader.stub.Schedule(make_request())
    await asyncio.wait_for(worker.started.wait(), PATIENCE_S)
    leader.stop.set()
    assert (await asyncio.wait_for(failure_of(call), PATIENCE_S)).reason is Reason.SCHEDULER_UNAVAILABLE
    await until(lambda: worker.cancelled.is_set() and worker.heartbeat_ended_with is not None)
    await until_leading(standby)
    # Nothing is carried over: the new leader knows no worker, and no request.
    assert (await standby.state()).running_requests == 0 and not (await standby.state()).workers
    worker.gate.set()
    successor = await add_worker(standby, "w", Role.DECODE, incarnation=2)
    answer = collect(standby.stub.Schedule(make_request()))
    assert sorted(revealed(await asyncio.wait_for(answer, PATIENCE_S))) == list(range(20))
    assert successor.works


async def test_a_leader_cut_off_from_redis_yields_to_its_successor_as_soon_as_a_worker_tells(
    start_scheduler: StartScheduler, add_worker: AddWorker, wire: Wire, lease: dict[str, Any]
) -> None:
    cut_off = await start_scheduler(**{**lease, "leader_lease": f"redis://{wire.address}/0", "leader_lease_s": 1.0})
    await until_leading(cut_off)
    worker = await add_worker(cut_off, "w", Role.DECODE)
    other = await start_scheduler(**{**lease, "leader_lease_s": 1.0})
    wire.cut()
    await until_leading(other)
    # It cannot know, and its worker has not left: it serves.
    assert sorted(revealed(await collect(cut_off.stub.Schedule(make_request())))) == list(range(20))
    # The worker's next life does what SchedulerLink does: it goes to the new leader and asks the old one what it is.
    moved = ScriptedWorker("w", Role.DECODE, incarnation=2)
    term = (await other.stub.RegisterWorker(registration(moved))).term
    asked = registration(moved, least_term=term, life_term=term)
    assert (await refusal(cut_off.stub.RegisterWorker(asked))).reason is Reason.NOT_LEADER
    await until(lambda: worker.heartbeat_ended_with is not None)
    assert await health_of(cut_off, SERVICE) == NOT_SERVING
    # Of two that say that they lead, the one of the higher term says which it is.
    refused = await refusal(other.stub.RegisterWorker(registration(moved, least_term=term - 1, life_term=term - 1)))
    assert (refused.reason, refused.metadata["term"]) == (Reason.STALE_INCARNATION, str(term))
    assert await health_of(other, SERVICE) == SERVING
    wire.mend()


@pytest.mark.parametrize("trouble", ["pause", "kill"])
async def test_a_scheduler_without_its_redis_stops_when_told_to(
    start_scheduler: StartScheduler, redis_server: RedisServer, lease: dict[str, Any], trouble: str
) -> None:
    leader = await start_scheduler(**lease)
    await until_leading(leader)
    standby = await start_scheduler(**lease)
    getattr(redis_server, trouble)()
    async with asyncio.timeout(PATIENCE_S):
        for scheduler in (leader, standby):
            scheduler.stop.set()
            await scheduler.ended


async def test_every_restart_of_a_lone_scheduler_is_a_higher_term(start_scheduler: StartScheduler) -> None:
    worker = ScriptedWorker("w", Role.DECODE)
    terms = []
    for _ in range(2):
        scheduler = await start_scheduler(mode=ServingMode.COLOCATED)
        terms.append((await scheduler.stub.RegisterWorker(registration(worker))).term)
        scheduler.stop.set()
    assert 0 < terms[0] < terms[1]


async def test_a_life_that_served_another_term_has_to_end(start_scheduler: StartScheduler) -> None:
    scheduler = await start_scheduler(mode=ServingMode.COLOCATED)
    old = ScriptedWorker("w", Role.DECODE, incarnation=7)
    refused = await refusal(scheduler.stub.RegisterWorker(registration(old, least_term=5, life_term=5)))
    assert refused.reason is Reason.STALE_INCARNATION
    assert refused.metadata["least_incarnation"] == "8"
    assert not (await scheduler.state()).workers
    new = ScriptedWorker("w", Role.DECODE, incarnation=8)
    term = (await scheduler.stub.RegisterWorker(registration(new, least_term=5))).term
    # The same life may register again: its stream broke, its scheduler lives.
    again = await scheduler.stub.RegisterWorker(registration(new, least_term=term, life_term=term))
    assert again.term == term
    assert len((await scheduler.state()).workers) == 1


async def test_a_scheduler_that_is_outranked_stops_at_once_and_leads_again_above(
    start_scheduler: StartScheduler, add_worker: AddWorker
) -> None:
    scheduler = await start_scheduler(mode=ServingMode.COLOCATED)
    worker = await add_worker(scheduler, "w", Role.DECODE)
    met = 2**52
    other = ScriptedWorker("v", Role.DECODE)
    # Refused at first, NOT_LEADER; the channel asks again.
    assert (await scheduler.stub.RegisterWorker(registration(other, least_term=met))).term > met
    await until(lambda: worker.heartbeat_ended_with is not None)
    assert [found.life.worker_id for found in (await scheduler.state()).workers] == ["v"]


async def test_a_term_beyond_what_can_be_counted_is_refused(start_scheduler: StartScheduler) -> None:
    scheduler = await start_scheduler(mode=ServingMode.COLOCATED)
    worker = ScriptedWorker("w", Role.DECODE)
    refused = await refusal(scheduler.stub.RegisterWorker(registration(worker, least_term=2**60)))
    assert refused.reason is Reason.INVALID_REQUEST and refused.metadata["field"] == "least_term"
    assert (await scheduler.stub.RegisterWorker(registration(worker))).term < 2**60
