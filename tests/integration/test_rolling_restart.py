"""Every service restarted in order, one after the other, under load: no request fails, all get their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from common.cli.cluster import Cluster
from common.cli.gateway_client import request_of
from common.cli.restart_orders import leave_order, obey_restart_orders
from common.cli.run_dir import NoCluster
from common.generation_input import GenerationInput
from sangam.v1 import inference_pb2_grpc
from tests.integration.cluster_help import (
    LONG,
    TIMEOUT_S,
    all_pages_free,
    ask,
    eventually,
    own_connection,
    random_model,
    running_cluster,
    solo_tokens,
    state_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL = ("gateway", "scheduler", "prefill-0", "decode-0", "kv_store")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("rolling")
    async with running_cluster(random_model(folder / "model"), folder / "run") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> tuple[int, ...]:
    return solo_tokens(cluster, LONG)


async def plain_answer(channel: grpc.aio.Channel, wanted: GenerationInput) -> tuple[int, ...]:
    """The tokens of one request, asked once as any gRPC client asks."""
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    runs = [response.committed async for response in stub.Generate(request_of(wanted), timeout=TIMEOUT_S)]
    return tuple(token for run in runs for token in run.token_ids)


async def test_all_services_restart_and_no_request_of_plain_clients_fails(
    cluster: Cluster, expected: tuple[int, ...]
) -> None:
    pids, over = cluster.processes, asyncio.Event()

    async def client(*, connects_anew: bool) -> int:
        asked = 0
        while not over.is_set():
            async with own_connection(cluster.gateway_address) as channel:
                while not over.is_set():
                    assert await plain_answer(channel, LONG) == expected
                    asked += 1
                    if connects_anew:
                        break
        return asked

    clients = [asyncio.create_task(client(connects_anew=anew)) for anew in (True, True, False, False)]
    # The gateway is the first to restart, and ends what it has.
    calls = [asyncio.create_task(ask(cluster, LONG)) for _ in range(3)]

    async def all_run() -> bool:
        return (await state_of(cluster)).running_requests == len(clients) + len(calls)

    await eventually(all_run)
    assert [name async for name in cluster.renew()] == list(ALL)
    over.set()
    assert [output.token_ids for output in await asyncio.gather(*calls)] == [expected] * 3
    assert all(await asyncio.gather(*clients))
    assert (await ask(cluster, LONG)).token_ids == expected
    for name in ALL:
        assert cluster.processes[name] != pids[name] and cluster.restarts[name] == 1
    await eventually(lambda: all_pages_free(cluster))


async def test_orders_are_carried_out_and_told(cluster: Cluster) -> None:
    with pytest.raises(NoCluster, match="takes no orders"):
        leave_order(cluster.config.run_dir, ["kv_store"])
    obeying = asyncio.create_task(obey_restart_orders(cluster, say=lambda line: None))
    await asyncio.sleep(0)
    run_dir, restarts = cluster.config.run_dir, cluster.restarts["kv_store"]
    told = leave_order(run_dir, ["kv_store"])
    refused = leave_order(run_dir, ["kv_stoer"])

    async def are_over() -> bool:
        return "done" in told.read_text() and "failed" in refused.read_text()

    await eventually(are_over)
    assert told.read_text().splitlines() == ["kv_store is back", "done"]
    assert "no service kv_stoer here (there are gateway, scheduler" in refused.read_text()
    assert cluster.restarts["kv_store"] == restarts + 1
    obeying.cancel()
    await asyncio.gather(obeying, return_exceptions=True)
    with pytest.raises(NoCluster, match="takes no orders"):
        leave_order(run_dir, ["kv_store"])


async def test_an_order_to_a_cluster_that_has_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="has ended"):
        leave_order(tmp_path, [])
