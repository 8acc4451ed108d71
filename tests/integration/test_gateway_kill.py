"""A gateway that is killed outright: clients bring along what they have, and no finished block runs again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from common.cli.cluster import Cluster
from common.cli.cluster_metrics import fetch_readings
from common.cli.gateway_client import generate_at, request_of
from common.cli.local_check import LocalCheck
from common.cli.reconnect import Reconnect
from common.cli.service_specs import ServiceSpecs
from common.cli.supervisor import ManagedProcess
from common.core.params import CacheMode, ConfidenceQuota, RandomReveal
from common.generation_input import GenerationInput
from common.rpc.channel import open_channel
from sangam.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.cluster_help import all_pages_free, eventually, random_model, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK_TOKENS = 32
BLOCKS = 6
LONG = GenerationInput(
    text="The river runs",
    token_ids=None,
    max_tokens=BLOCKS * BLOCK_TOKENS,
    block_length_tokens=BLOCK_TOKENS,
    strategy=ConfidenceQuota(1),
    ignore_eos=True,
)
CASES = {
    "dual, within a block": (replace(LONG, temperature=0.7), 5),
    "dual, greedy, at a block's end": (LONG, 0),
    "prefix, within a block": (replace(LONG, cache_mode=CacheMode.PREFIX, temperature=0.7), 1),
    "none, within a block": (replace(LONG, cache_mode=CacheMode.NONE, strategy=RandomReveal(), temperature=0.7), 9),
    "none, greedy, at a block's end": (replace(LONG, cache_mode=CacheMode.NONE), 0),
}
"""A request, and how many tokens of its open block the client brings along."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("gateway-kill")
    async with running_cluster(random_model(folder / "model"), folder / "run") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> LocalCheck:
    """The engine in process."""
    asked = [wanted for wanted, _ in CASES.values()]
    return LocalCheck.load(cluster.config.model_dir, asked, device="cpu", dtype="auto")


@dataclass(frozen=True, slots=True)
class Work:
    """What the cluster has computed so far: blocks committed, their prefills, and canvas tokens prefilled in all."""

    blocks: float
    prefills: float
    prefilled_tokens: float


async def work_of(cluster: Cluster) -> Work:
    scheduler = await fetch_readings(cluster.scheduler_address) or []
    workers = [await fetch_readings(cluster.addresses[name]) or [] for name in ("prefill-0", "decode-0")]

    def count(readings: Sequence[Any], name: str, *labels: tuple[str, str]) -> float:
        return float(sum(found.value for found in readings if (found.name, found.labels) == (name, labels)))

    return Work(
        blocks=count(scheduler, "sangam_blocks_total"),
        prefills=count(scheduler, "sangam_forwards_total", ("kind", "prefill")),
        prefilled_tokens=sum(count(one, "sangam_iteration_tokens_total", ("kind", "prefill")) for one in workers),
    )


async def kill_gateway(cluster: Cluster) -> None:
    """Kill it, and wait for its next life."""
    restarts = cluster.restarts["gateway"]
    os.kill(cluster.processes["gateway"], signal.SIGKILL)

    async def is_back() -> bool:
        return cluster.restarts["gateway"] > restarts and "gateway" in cluster.addresses

    await eventually(is_back)


async def read_until(responses: Any, tokens: list[int], count: int) -> None:
    """Read committed tokens until there are `count`."""
    while len(tokens) < count:
        response = await anext(responses)
        tokens += response.committed.token_ids


@pytest.mark.parametrize("name", CASES)
async def test_a_new_gateway_goes_on_at_the_clients_block(cluster: Cluster, alone: LocalCheck, name: str) -> None:
    wanted, rest = CASES[name]
    expected = list(alone.run(wanted).token_ids)
    request = request_of(wanted)
    request.request_id = f"killed-{list(CASES).index(name)}"
    tokens: list[int] = []
    async with open_channel(cluster.gateway_address) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(request, timeout=60)
        await read_until(aiter(call), tokens, 2 * BLOCK_TOKENS + rest)
        await kill_gateway(cluster)
        with pytest.raises(grpc.aio.AioRpcError):
            await read_until(aiter(call), [], len(expected))
        await eventually(lambda: all_pages_free(cluster))
        del tokens[len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS + rest :]
        before = await work_of(cluster)
        request.from_position = len(tokens)
        request.committed_token_ids.extend(tokens)
        finished = inference_pb2.Finished()
        async for response in stub.Generate(request, timeout=60, wait_for_ready=True):
            tokens += response.committed.token_ids
            finished.MergeFrom(response.finished)
        await eventually(lambda: all_pages_free(cluster))
        after = await work_of(cluster)
    assert tokens == expected
    left = BLOCKS - finished.usage.carried_tokens // BLOCK_TOKENS
    assert 0 < left <= BLOCKS - 2
    assert [block.block for block in finished.blocks] == list(range(BLOCKS - left, BLOCKS))
    assert finished.usage.attempts == finished.usage.prefill_forwards == left
    assert (after.blocks - before.blocks, after.prefills - before.prefills) == (left, left)
    canvas_tokens = finished.usage.prompt_tokens + len(expected)
    if wanted.cache_mode is not CacheMode.NONE:  # there every step counts as a prefill
        assert after.prefilled_tokens - before.prefilled_tokens == left * canvas_tokens


async def test_the_command_lines_client_brings_along_what_it_has(cluster: Cluster, alone: LocalCheck) -> None:
    killed: list[asyncio.Task[None]] = []
    wanted, _ = CASES["dual, within a block"]
    request = request_of(wanted)
    request.request_id = "of-the-command-line"

    def on_tokens(positions: Sequence[int], token_ids: Sequence[int]) -> None:
        if not killed and positions and max(positions) >= 3 * BLOCK_TOKENS:
            killed.append(asyncio.create_task(kill_gateway(cluster)))

    output = await generate_at(
        cluster.gateway_address,
        request,
        timeout_s=60,
        on_text=lambda text: None,
        on_tokens=on_tokens,
        reconnect=Reconnect(),
    )
    await asyncio.gather(*killed)
    assert output.token_ids == alone.run(wanted).token_ids
    assert output.carried_tokens >= 3 * BLOCK_TOKENS
    assert len(output.blocks) == BLOCKS - output.carried_tokens // BLOCK_TOKENS == output.attempts


@asynccontextmanager
async def two_gateways(
    cluster: Cluster, folder: Path
) -> AsyncIterator[tuple[inference_pb2_grpc.InferenceServiceAsyncStub, inference_pb2_grpc.InferenceServiceAsyncStub]]:
    """The cluster's gateway, and a second one that runs meanwhile."""
    spec = ServiceSpecs(cluster.config).gateway(schedulers=cluster.scheduler_address)
    other = ManagedProcess(spec, run_dir=folder, say=lambda line: None)
    await other.start(timeout_s=60)
    try:
        async with open_channel(cluster.gateway_address) as here, open_channel(other.address) as there:
            first: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(here)
            second: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(there)
            yield first, second
    finally:
        await other.stop(grace_s=10)


async def test_cancel_at_a_gateway_that_does_not_know_the_request_ends_it(cluster: Cluster, tmp_path: Path) -> None:
    request = request_of(CASES["dual, within a block"][0])
    request.request_id = "cancelled-elsewhere"
    cancel = inference_pb2.CancelRequest(request_id=request.request_id)
    async with two_gateways(cluster, tmp_path) as (here, there):
        call = here.Generate(request, timeout=60)
        await read_until(aiter(call), [], BLOCK_TOKENS)
        assert (await there.Cancel(cancel, timeout=30)).was_running
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_until(aiter(call), [], BLOCKS * BLOCK_TOKENS)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        await eventually(lambda: all_pages_free(cluster))
        assert not (await there.Cancel(cancel, timeout=30)).was_running


async def test_another_gateway_shares_a_request_that_runs_and_outlives_the_first(
    cluster: Cluster, alone: LocalCheck, tmp_path: Path
) -> None:
    wanted, _ = CASES["dual, within a block"]
    request = request_of(wanted)
    request.request_id = "of-two-gateways"
    expected = list(alone.run(wanted).token_ids)
    before = await work_of(cluster)
    async with two_gateways(cluster, tmp_path) as (here, there):
        call = here.Generate(request, timeout=60)
        await read_until(aiter(call), [], BLOCK_TOKENS)
        tokens: list[int] = []
        responses = aiter(there.Generate(request, timeout=60))
        await read_until(responses, tokens, BLOCK_TOKENS)
        await kill_gateway(cluster)
        await read_until(responses, tokens, len(expected))
        finished = [response.finished async for response in responses if response.HasField("finished")]
    assert tokens == expected
    assert len(finished) == 1 and finished[0].usage.attempts == BLOCKS
    await eventually(lambda: all_pages_free(cluster))
    # It ran once.
    assert (await work_of(cluster)).blocks - before.blocks == BLOCKS
