"""Clients that go away at any moment, and what that leaves behind: nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from common.cli.cluster import Cluster
from common.cli.gateway_client import request_of
from common.cli.table import render_table
from common.generation_input import GenerationInput
from common.rpc.channel import open_channel
from sangam.v1 import inference_pb2_grpc
from tests.chaos.settling import Leaks, settle
from tests.chaos.watched_request import WatchedRequest
from tests.invariance.solo import SoloAnswer

AT_ONCE = 10
"""Clients at the same time."""

PHASE_S = 0.4
"""A client leaves within this time after the event that it waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectResult:
    """How the disconnects and the requests after them went. `left_at` counts the clients by what they had heard."""

    left_at: dict[str, int]
    after: tuple[WatchedRequest, ...]
    leaks: Leaks


async def disconnect_storm(
    cluster: Cluster, leaving: Sequence[GenerationInput], after: Sequence[GenerationInput], *, seed: int
) -> DisconnectResult:
    """Let `leaving` go away at random phases, then ask `after`, all at once, and count what is left."""
    choose = random.Random(seed)
    slots = asyncio.Semaphore(AT_ONCE)

    async def leave(wanted: GenerationInput, phase: str, pause_s: float) -> str:
        async with slots:
            return await _leave(cluster.gateway_address, wanted, phase, pause_s)

    async with asyncio.TaskGroup() as tasks:
        leaves = [
            tasks.create_task(leave(wanted, choose.choice(_PHASES), choose.uniform(0.0, PHASE_S))) for wanted in leaving
        ]
    requests = [WatchedRequest(wanted, f"after-{seed}-{index}") for index, wanted in enumerate(after)]
    await asyncio.gather(*(request.run(cluster.gateway_address, timeout_s=120.0) for request in requests))
    heard = [task.result() for task in leaves]
    return DisconnectResult(
        left_at={phase: heard.count(phase) for phase in dict.fromkeys(heard)},
        after=tuple(requests),
        leaks=await settle(cluster),
    )


def problems(result: DisconnectResult, solo: Sequence[SoloAnswer]) -> list[str]:
    """A line for each broken promise: `solo` are the right answers to the requests that came after."""
    lines = [line for request, right in zip(result.after, solo, strict=True) for line in request.differences(right)]
    return [*lines, *([f"left over after the disconnects: {result.leaks}"] if result.leaks.total else [])]


def render(result: DisconnectResult) -> str:
    """In a table."""
    gone = ", ".join(f"{count} after {phase}" for phase, count in sorted(result.left_at.items()))
    finished = sum(request.finished is not None for request in result.after)
    facts = [
        ("clients that went away", gone),
        ("requests afterwards that finished", f"{finished} of {len(result.after)}"),
        ("leaked pages, leases, requests", str(result.leaks)),
    ]
    return render_table(("what", "seen"), facts)


_PHASES = ("nothing", "accepted", "committed")
"""What a client has heard when it makes up its mind to leave."""


async def _leave(address: str, wanted: GenerationInput, phase: str, pause_s: float) -> str:
    """Ask, wait for the phase and a little more, hang up; the last thing that was heard."""
    heard = "nothing"
    async with open_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(request_of(wanted))

        async def listen() -> None:
            nonlocal heard
            async for response in call:
                heard = response.WhichOneof("event") or heard
                if heard == phase:
                    return

        listening = asyncio.create_task(listen())
        if phase == "nothing":
            await asyncio.sleep(pause_s)
        else:
            await listening
            await asyncio.sleep(pause_s)
        call.cancel()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    return heard
