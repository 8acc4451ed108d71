"""Services that are killed outright while they work: requests end with the same tokens all the same."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from common.cli.cluster import Cluster
from common.cli.reconnect import Reconnect
from common.rpc.healthcheck import is_serving
from tests.integration.cluster_help import (
    LONG,
    all_pages_free,
    ask,
    eventually,
    random_model,
    running_cluster,
    solo_tokens,
    state_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("faults")
    # A short lease: what a dead scheduler left at the prefill worker is not waited for. The storms kill over tcp.
    options = ("--kv-lease-s", "2")
    settings = {"worker_options": options, "kv_transport": "ucx"}
    async with running_cluster(random_model(folder / "model"), folder / "run", **settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> tuple[int, ...]:
    return solo_tokens(cluster, LONG)


async def incarnations(cluster: Cluster) -> dict[str, int]:
    return {worker.life.worker_id: worker.life.incarnation for worker in (await state_of(cluster)).workers}


async def is_running(cluster: Cluster, requests: int) -> bool:
    """Whether that many requests run, and some block is being decoded."""
    state = await state_of(cluster)
    return state.running_requests == requests and any(worker.active_decodes for worker in state.workers)


async def kill_under_load(
    cluster: Cluster, name: str, expected: tuple[int, ...], *, number: signal.Signals = signal.SIGKILL
) -> None:
    """Signal a process in the middle of three requests; all end with the expected tokens, every page comes back."""
    calls = [asyncio.create_task(ask(cluster, LONG, reconnect=Reconnect())) for _ in range(3)]
    await eventually(lambda: is_running(cluster, len(calls)))
    os.kill(cluster.processes[name], number)
    outputs = await asyncio.gather(*calls)
    assert [output.token_ids for output in outputs] == [expected] * 3
    assert any(block.transfer_bytes for output in outputs for block in output.blocks), "K/V was on the move"
    await eventually(lambda: all_pages_free(cluster))


@pytest.mark.parametrize("name", ["decode-0", "prefill-0"])
async def test_killed_worker_costs_no_request_and_comes_back_as_a_new_life(
    cluster: Cluster, expected: tuple[int, ...], name: str
) -> None:
    before = await incarnations(cluster)
    restarts = cluster.restarts[name]
    await kill_under_load(cluster, name, expected)

    async def is_back() -> bool:
        return (await incarnations(cluster)).get(name, 0) > before[name]

    await eventually(is_back)
    assert cluster.restarts[name] == restarts + 1
    untouched = {worker: life for worker, life in before.items() if worker != name}
    assert untouched.items() <= (await incarnations(cluster)).items()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_ended_scheduler_costs_no_request_and_comes_back_at_its_place(
    cluster: Cluster, expected: tuple[int, ...], number: signal.Signals
) -> None:
    address, restarts = cluster.scheduler_address, cluster.restarts["scheduler"]
    await kill_under_load(cluster, "scheduler", expected, number=number)
    assert cluster.scheduler_address == address
    assert cluster.restarts["scheduler"] == restarts + 1


async def test_killed_gateway_costs_no_request_and_repeats_no_text(cluster: Cluster, expected: tuple[int, ...]) -> None:
    address, restarts = cluster.gateway_address, cluster.restarts["gateway"]
    await kill_under_load(cluster, "gateway", expected)
    assert cluster.gateway_address == address
    assert cluster.restarts["gateway"] == restarts + 1


async def test_one_request_under_one_id_however_many_ask(cluster: Cluster, expected: tuple[int, ...]) -> None:
    ended = (await state_of(cluster)).ended_requests
    calls = [asyncio.create_task(ask(cluster, LONG, request_id="shared")) for _ in range(3)]
    outputs = await asyncio.gather(*calls)
    outputs.append(await ask(cluster, LONG, request_id="shared"))
    assert [output.token_ids for output in outputs] == [expected] * 4
    assert len({output.total_s for output in outputs}) == 1
    assert (await state_of(cluster)).ended_requests == ended + 1


async def test_a_crash_of_one_role_leaves_the_others_ready(cluster: Cluster) -> None:
    others = [address for name, address in cluster.addresses.items() if name != "prefill-0"]
    restarts = cluster.restarts["prefill-0"]
    os.kill(cluster.processes["prefill-0"], signal.SIGKILL)
    looks = 0

    async def is_back() -> bool:
        nonlocal looks
        # A busy machine may answer late, never otherwise.
        assert all([await is_serving(address, timeout_s=30.0) for address in others])
        looks += 1
        return cluster.restarts["prefill-0"] > restarts and "prefill-0" in await incarnations(cluster)

    await eventually(is_back, timeout_s=120.0)
    assert len(others) == 4 and looks > 1


async def test_killed_registry_is_not_even_noticed(cluster: Cluster, expected: tuple[int, ...]) -> None:
    await kill_under_load(cluster, "kv_store", expected)


async def test_terminated_worker_hands_its_work_over_and_stays_away(
    cluster: Cluster, expected: tuple[int, ...]
) -> None:
    restarts = cluster.restarts["prefill-0"]
    await kill_under_load(cluster, "prefill-0", expected, number=signal.SIGTERM)

    async def is_gone() -> bool:
        return "prefill-0" not in cluster.processes

    await eventually(is_gone)
    # Nothing is left but to overflow.
    output = await ask(cluster, LONG)
    assert output.token_ids == expected
    assert {block.prefill_worker_id for block in output.blocks} == {"decode-0"}
    assert all(block.overflow for block in output.blocks)
    assert cluster.restarts["prefill-0"] == restarts
