"""Two schedulers: one leads, one stands by; whatever becomes of the leader, requests end with the same tokens."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from common.cli.cluster import Cluster
from common.cli.gateway_client import generate_at, request_of
from common.rpc.healthcheck import is_serving
from common.rpc.leader_watch import SERVICE
from tests.integration.cluster_help import (
    LONG,
    TIMEOUT_S,
    all_pages_free,
    ask,
    eventually,
    leader_of,
    random_model,
    running_cluster,
    solo_tokens,
    state_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("scheduler-0", "scheduler-1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("schedulers")
    # A lease far longer than any test: K/V kept for a dead leader is not waited for.
    options = ("--kv-lease-s", "600")
    settings = {"schedulers": 2, "registry": "", "worker_options": options}
    async with running_cluster(random_model(folder / "model"), folder / "run", **settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> tuple[int, ...]:
    return solo_tokens(cluster, LONG)


async def under_load(cluster: Cluster, expected: tuple[int, ...], trouble: str) -> float:
    """Send the leader a signal in the middle of three requests.

    All must end with the expected tokens and every page come back. Returns the longest wait of a request for its next
    text after the signal, in seconds.
    """
    texts_s: list[list[float]] = [[] for _ in range(3)]
    calls = [
        asyncio.create_task(
            generate_at(
                cluster.gateway_address,
                request_of(LONG),
                timeout_s=TIMEOUT_S,
                on_text=lambda text, times=times: times.append(time.monotonic()),  # type: ignore[misc]  # bound early
            )
        )
        for times in texts_s
    ]

    async def all_decode() -> bool:
        return all(texts_s)

    leader = await leader_of(cluster)
    await eventually(all_decode)
    pid, signalled_s = cluster.processes[leader], time.monotonic()
    os.kill(pid, getattr(signal, trouble))
    outputs = await asyncio.gather(*calls)
    if trouble == "SIGSTOP":
        os.kill(pid, signal.SIGCONT)
    assert [output.token_ids for output in outputs] == [expected] * 3
    await eventually(lambda: all_pages_free(cluster))
    return max(min(moment for moment in times if moment > signalled_s) - signalled_s for times in texts_s)


async def test_the_standby_is_well_but_serves_nothing(cluster: Cluster) -> None:
    leader = await leader_of(cluster)
    standby = next(name for name in NAMES if name != leader)
    assert await is_serving(cluster.addresses[standby])
    assert not await is_serving(cluster.addresses[standby], service=SERVICE)
    assert len((await state_of(cluster)).workers) == 2


@pytest.mark.parametrize("trouble", ["SIGKILL", "SIGTERM", "SIGSTOP"])
async def test_a_lost_leader_costs_no_request(
    cluster: Cluster, expected: tuple[int, ...], trouble: str, record_property
) -> None:
    leader, lives = await leader_of(cluster), {w.life.worker_id: w.life for w in (await state_of(cluster)).workers}
    record_property("recovery_s", await under_load(cluster, expected, trouble))
    # A killed leader is back before its lease ends, and then either may lead.
    assert await leader_of(cluster) != leader or trouble == "SIGKILL"
    after = {worker.life.worker_id: worker.life for worker in (await state_of(cluster)).workers}
    assert after.keys() == lives.keys()
    assert all(after[name].incarnation > lives[name].incarnation for name in lives), "a new leader has new lives"
    assert not any(cluster.restarts[name] for name in lives), "and no worker's process noticed"


async def test_a_lost_standby_is_not_even_noticed(cluster: Cluster, expected: tuple[int, ...]) -> None:
    leader = await leader_of(cluster)
    standby = next(name for name in NAMES if name != leader)
    call = asyncio.create_task(ask(cluster, LONG))
    os.kill(cluster.processes[standby], signal.SIGKILL)
    output = await call
    assert output.token_ids == expected
    assert output.attempts == len(output.blocks)
    assert await leader_of(cluster) == leader


async def test_a_redis_that_dies_and_comes_back_empty_costs_no_request(
    cluster: Cluster, expected: tuple[int, ...]
) -> None:
    calls = [asyncio.create_task(ask(cluster, LONG)) for _ in range(3)]
    os.kill(cluster.processes["redis"], signal.SIGKILL)
    assert [output.token_ids for output in await asyncio.gather(*calls)] == [expected] * 3

    async def is_back() -> bool:
        return cluster.restarts["redis"] == 1 and await is_serving(cluster.kv_store_address)

    await eventually(is_back, timeout_s=120.0)
    # Whoever led, one leads now, with every worker.
    await leader_of(cluster)
    assert (await ask(cluster, LONG)).token_ids == expected
    await eventually(lambda: all_pages_free(cluster))
