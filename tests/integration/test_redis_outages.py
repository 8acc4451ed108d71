"""Two schedulers whose Redis goes away for longer than their lease: who leads goes on, and no request is the wiser."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from common.cli.cluster import Cluster
from common.cli.gateway_client import generate_at, request_of
from common.cli.generation_output import GenerationOutput
from common.cli.local_check import LocalCheck
from common.core.defaults import DEFAULT_LEADER_LEASE_S
from common.core.params import ConfidenceQuota
from common.errors import Reason, WireError
from common.generation_input import GenerationInput
from common.rpc.healthcheck import is_serving
from common.rpc.leader_watch import SERVICE
from tests.chaos.wire import Wire
from tests.integration.cluster_help import (
    all_pages_free,
    ask,
    eventually,
    leader_of,
    random_model,
    running_cluster,
    state_of,
)
from tests.redis_server import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_S = DEFAULT_LEADER_LEASE_S
OUTAGE_S = 4 * LEASE_S

# Dozens of forwards each, so that one or another is always under way.
WANTED = [
    GenerationInput(
        text=text, token_ids=None, max_tokens=96, strategy=ConfidenceQuota(2), temperature=temperature, ignore_eos=True
    )
    for text, temperature in (("The river runs", 0.5), ("Under the bridge", 0.0), ("A light on the hill", 0.8))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A cluster, its Redis, each scheduler's own wire to it by name, and the solo answers."""

    cluster: Cluster
    redis: RedisServer
    wires: dict[str, Wire]
    expected: list[tuple[int, ...]]

    async def lives(self) -> list[tuple[str, int]]:
        """The workers' lives: each leader has others."""
        return [(worker.life.worker_id, worker.life.incarnation) for worker in (await state_of(self.cluster)).workers]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("outages")
    redis = RedisServer(folder)
    redis.start()
    wires = {name: Wire("127.0.0.1", lambda: f"127.0.0.1:{redis.port}") for name in ("scheduler-0", "scheduler-1")}
    leases = {name: ("--leader-lease", f"redis://{wire.address}/0") for name, wire in wires.items()}
    model = random_model(folder / "model")
    check = LocalCheck.load(model, WANTED, device="cpu", dtype="auto")
    expected = [check.run(wanted).token_ids for wanted in WANTED]
    settings = {"schedulers": 2, "registry": redis.url, "options_of": leases}
    async with asyncio.TaskGroup() as tasks:
        carrying = [tasks.create_task(wire.run()) for wire in wires.values()]
        try:
            async with running_cluster(model, folder / "run", **settings) as cluster:
                yield Stage(cluster=cluster, redis=redis, wires=wires, expected=expected)
        finally:
            for task in carrying:
                task.cancel()
            redis.resume()
            redis.stop()


@asynccontextmanager
async def load(stage: Stage) -> AsyncIterator[list[GenerationOutput]]:
    """Three clients ask one request after the other while the block runs; each answer must be the solo one."""
    answers: list[GenerationOutput] = []
    enough = asyncio.Event()

    async def client(turn: int) -> None:
        while not enough.is_set():
            output = await ask(stage.cluster, WANTED[turn % len(WANTED)])
            assert output.token_ids == stage.expected[turn % len(WANTED)]
            answers.append(output)
            turn += 1

    async def each_is_heard() -> bool:
        return len(answers) >= len(WANTED)

    async with asyncio.TaskGroup() as clients:
        for turn in range(len(WANTED)):
            clients.create_task(client(turn))
        await eventually(each_is_heard)
        yield answers
        enough.set()


@pytest.mark.parametrize("trouble", ["kill", "pause"])
async def test_an_outage_far_longer_than_the_lease_costs_nothing(stage: Stage, trouble: str) -> None:
    leader, lives = await leader_of(stage.cluster), await stage.lives()
    async with load(stage) as answers:
        before = len(answers)
        getattr(stage.redis, trouble)()
        await asyncio.sleep(OUTAGE_S)
        assert len(answers) > before, "decoding went on"
        assert await leader_of(stage.cluster) == leader
        if trouble == "kill":
            stage.redis.start()  # empty
        else:
            stage.redis.resume()
        await eventually(lambda: is_serving(stage.cluster.kv_store_address))
        # Now another could take the lease, if it were left to whoever comes first.
        await asyncio.sleep(LEASE_S)
    assert await leader_of(stage.cluster) == leader and await stage.lives() == lives
    assert all(output.attempts == len(output.blocks) for output in answers), "no block was tried again"
    await eventually(lambda: all_pages_free(stage.cluster))


async def test_another_empty_redis_in_the_place_of_the_first_costs_no_request(stage: Stage) -> None:
    async with load(stage) as answers:
        stage.redis.kill()
        stage.redis.start()
        before = len(answers)
        await eventually(lambda: is_serving(stage.cluster.kv_store_address))
        await asyncio.sleep(2 * LEASE_S)
        assert len(answers) > before
    await leader_of(stage.cluster)
    await eventually(lambda: all_pages_free(stage.cluster))


async def test_a_leader_that_alone_is_cut_off_from_redis_is_followed_under_a_higher_term(stage: Stage) -> None:
    leader, lives = await leader_of(stage.cluster), await stage.lives()
    async with load(stage):
        stage.wires[leader].cut()

        async def another_leads() -> bool:
            return await leader_of(stage.cluster) != leader

        # And the former one stands by: its workers told it.
        await eventually(another_leads)
        await eventually(lambda: newer(stage, lives))
        assert not await is_serving(stage.cluster.addresses[leader], service=SERVICE)
        stage.wires[leader].mend()
    assert not any(stage.cluster.restarts.values())
    await eventually(lambda: all_pages_free(stage.cluster))


async def test_a_leader_lost_with_redis_is_followed_once_redis_is_back(stage: Stage) -> None:
    leader, lives = await leader_of(stage.cluster), await stage.lives()
    async with load(stage):
        stage.redis.kill()
        os.kill(stage.cluster.processes[leader], signal.SIGKILL)
        # Nobody can be sure to be the only one who comes to lead now, so nobody does, and who cannot wait is told.
        with pytest.raises(WireError) as caught:
            await generate_at(
                stage.cluster.gateway_address, request_of(WANTED[0]), timeout_s=LEASE_S, on_text=lambda text: None
            )
        assert caught.value.reason is Reason.DEADLINE_EXCEEDED
        stage.redis.start()
    await leader_of(stage.cluster)
    # The new term is above the old one, although this Redis has never seen that.
    await eventually(lambda: newer(stage, lives))
    await eventually(lambda: all_pages_free(stage.cluster))


async def newer(stage: Stage, lives: list[tuple[str, int]]) -> bool:
    """Whether every worker is there again, in a later life than one of these."""
    now = dict(await stage.lives())
    return now.keys() == dict(lives).keys() and all(now[name] > incarnation for name, incarnation in lives)
