"""What the cluster tests share: model folders, running clusters, finding processes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from common.cli.cluster import Cluster
from common.cli.cluster_config import ClusterConfig
from common.cli.gateway_client import generate_at, request_of
from common.cli.generation_output import GenerationOutput
from common.cli.local_check import LocalCheck
from common.cli.reconnect import Reconnect
from common.cli.status import fetch_state, unfree_pages
from common.core.ids import ServingMode
from common.core.params import ConfidenceQuota
from common.generation_input import GenerationInput
from common.random_checkpoint import build_random_checkpoint
from common.rpc.healthcheck import is_serving
from common.rpc.leader_watch import SERVICE
from sangam.v1 import scheduler_pb2

GOLDEN_DIR = Path(__file__).parents[1] / "data" / "golden"
TIMEOUT_S = 60.0

LONG = GenerationInput(
    text="The river runs", token_ids=None, max_tokens=192, strategy=ConfidenceQuota(1), temperature=0.5, ignore_eos=True
)
"""Hundreds of forwards: long enough to lose a service in the middle."""


def random_model(folder: Path) -> Path:
    """A small random checkpoint with a byte-level tokenizer."""
    build_random_checkpoint(folder)
    return folder


def golden_model(name: str, folder: Path) -> Path:
    """A golden checkpoint with a byte-level tokenizer beside it: the goldens themselves have ids only."""
    shutil.copytree(GOLDEN_DIR / name, folder)
    donor = random_model(folder.with_name(f"{folder.name}-tokenizer"))
    shutil.copy(donor / "tokenizer.json", folder)
    return folder


@asynccontextmanager
async def running_cluster(model_dir: Path, run_dir: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """A cluster of `model_dir`; afterwards none of its processes may be left."""
    facts: dict[str, Any] = {"mode": ServingMode.HYBRID, "prefill_workers": 1, "decode_workers": 1, "torch_threads": 1}
    config = ClusterConfig(model_dir=model_dir, run_dir=run_dir, **{**facts, **settings})
    async with Cluster(config) as cluster:
        yield cluster
    assert processes_of(run_dir) == []


async def ask(
    cluster: Cluster, wanted: GenerationInput, *, reconnect: Reconnect | None = None, request_id: str = ""
) -> GenerationOutput:
    """One request through the cluster's gateway."""
    request = request_of(wanted)
    request.request_id = request_id
    return await generate_at(
        cluster.gateway_address, request, timeout_s=TIMEOUT_S, on_text=lambda text: None, reconnect=reconnect
    )


def solo_tokens(cluster: Cluster, wanted: GenerationInput) -> tuple[int, ...]:
    """What the engine in process answers with the cluster's model."""
    return LocalCheck.load(cluster.config.model_dir, [wanted], device="cpu", dtype="auto").run(wanted).token_ids


def own_connection(address: str) -> grpc.aio.Channel:
    """A channel as a client in a process of its own has it; those of one process share their connections."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def state_of(cluster: Cluster) -> scheduler_pb2.GetClusterStateResponse:
    """The cluster as its scheduler sees it."""
    return await fetch_state(cluster.scheduler_address)


async def leader_of(cluster: Cluster) -> str:
    """Name of the one of several schedulers that serves, as soon as it is one and the others stand by."""
    names = [name for name in cluster.restarts if name.startswith("scheduler-")]
    found: list[str] = []

    async def one_leads() -> bool:
        leading = [await is_serving(cluster.addresses.get(name, "127.0.0.1:1"), service=SERVICE) for name in names]
        found[:] = [name for name, leads in zip(names, leading, strict=True) if leads]
        return len(found) == 1 and all(name in cluster.addresses for name in names)

    await eventually(one_leads)
    return found[0]


async def eventually(holds: Callable[[], Awaitable[bool]], *, timeout_s: float = 30.0) -> None:
    """Wait until an asynchronous condition holds; fails the test after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110  # another process changes it, no event can tell
            await asyncio.sleep(0.02)


async def all_pages_free(cluster: Cluster) -> bool:
    """Whether every page is free, in the scheduler's ledger and by every worker's own report, and nothing runs."""
    state = await state_of(cluster)
    return not state.running_requests and all(
        not unfree_pages(worker) and not worker.report.retained_blocks for worker in state.workers
    )


def processes_of(run_dir: Path) -> list[int]:
    """Processes whose command line names the run folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(run_dir).encode() in command:
                found.append(int(entry.name))
    return found
