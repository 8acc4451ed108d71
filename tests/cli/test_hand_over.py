"""A gateway's next life serves before the last one leaves: no call is refused, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.cli.supervisor import ManagedProcess, ProcessSpec, ServiceFailed
from common.cli.up import check_port_free
from common.errors import ConfigError
from common.rpc.healthcheck import is_serving
from sangam.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.scripted_scheduler import FIRST, REST, ScriptedScheduler, play, play_then_hang
from tests.integration.cluster_help import own_connection, random_model
from tests.scheduler_service.scripted import until

REQUEST = inference_pb2.GenerateRequest(
    text="Hello", request_id="r", max_tokens=8, block_length_tokens=4, detach_grace_ms=60_000
)


@dataclass(frozen=True)
class Gateway:
    """A supervised gateway at a scripted scheduler; `lines` is what its supervisor says."""

    process: ManagedProcess
    scheduler: ScriptedScheduler
    model_dir: Path
    lines: list[str]

    async def is_serving(self) -> bool:
        return await is_serving(self.process.address, timeout_s=20)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    scheduler = ScriptedScheduler()
    model_dir = random_model(tmp_path / "model")
    async with scheduler.serving():
        arguments = (
            *("--model-dir", str(model_dir), "--scheduler-address", scheduler.address),
            *("--share-port", "--drain-s", "20"),
        )
        spec = ProcessSpec(
            name="gateway", module="services.gateway", arguments=arguments, may_end=False, shares_port=True
        )
        lines: list[str] = []
        process = ManagedProcess(spec, run_dir=tmp_path, say=lines.append)
        await process.start(timeout_s=60)
        supervising = asyncio.create_task(process.supervise())
        yield Gateway(process, scheduler, model_dir, lines)
        await process.stop(grace_s=30)
        await supervising


def renew(gateway: Gateway) -> asyncio.Task[None]:
    return asyncio.create_task(gateway.process.renew(grace_s=30))


async def test_no_call_is_refused_while_one_life_follows_the_other(gateway: Gateway) -> None:
    address, pid = gateway.process.address, gateway.process.pid
    over = asyncio.Event()

    async def client(*, of_one_connection: bool) -> int:
        asked = 0
        while not over.is_set():
            async with own_connection(address) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                for _ in range(200 if of_one_connection else 1):
                    await stub.GetModel(inference_pb2.GetModelRequest(), timeout=60)
                    asked += 1
                    if over.is_set():
                        break
        return asked

    clients = [asyncio.create_task(client(of_one_connection=one)) for one in (True, True, True, False, False)]
    await renew(gateway)
    assert await gateway.is_serving()
    over.set()
    assert all(await asyncio.gather(*clients))
    assert pid is not None and gateway.process.pid not in (None, pid)
    assert (gateway.process.address, gateway.process.restarts, gateway.lines) == (address, 1, [])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_call_that_runs_ends_where_it_began_and_others_begin_at_the_next_life(gateway: Gateway) -> None:
    gateway.scheduler.script(play_then_hang(*FIRST), play(*FIRST, *REST))
    address = gateway.process.address
    async with own_connection(address) as old, own_connection(address) as new:
        running = inference_pb2_grpc.InferenceServiceStub(old).Generate(REQUEST, timeout=90)
        stub = inference_pb2_grpc.InferenceServiceStub(new)
        await anext(aiter(running))
        renewing = renew(gateway)
        await until(lambda: gateway.process.restarts, timeout_s=60)
        # The scheduler is asked a second time: this gateway does not know the request.
        told = [response async for response in stub.Generate(REQUEST, timeout=60)]
        assert "".join(response.committed.text for response in told) == "abcdefgh"
        # The first is still watched, and goes on.
        assert (await anext(aiter(running))).committed.text == "abcd"
        assert not gateway.scheduler.cancelled.is_set()
        running.cancel()
        # Nobody watches it any more, and whoever comes back comes to the other: its grace is none.
        await asyncio.wait_for(gateway.scheduler.cancelled.wait(), 30)
        await renewing


async def test_a_next_life_that_does_not_come_leaves_the_present_one_alone(gateway: Gateway) -> None:
    pid = gateway.process.pid
    shutil.move(gateway.model_dir, gateway.model_dir.with_name("elsewhere"))
    with pytest.raises(ServiceFailed, match="ended while starting"):
        await renew(gateway)
    assert await gateway.is_serving()
    assert (gateway.process.pid, gateway.process.restarts) == (pid, 0)


async def test_a_life_that_dies_while_the_next_one_starts_is_followed_by_that_one(gateway: Gateway) -> None:
    renewing = renew(gateway)
    await asyncio.sleep(0)
    assert gateway.process.pid is not None
    os.kill(gateway.process.pid, signal.SIGKILL)
    await renewing
    assert await gateway.is_serving()
    assert gateway.process.restarts == 1


async def test_a_next_life_that_dies_soon_is_followed_by_another(gateway: Gateway) -> None:
    renewing = renew(gateway)
    await until(lambda: gateway.process.restarts, timeout_s=60)
    assert gateway.process.pid is not None
    os.kill(gateway.process.pid, signal.SIGKILL)
    await until(lambda: any("is back" in line for line in gateway.lines), timeout_s=60)
    await renewing
    assert await gateway.is_serving()
    assert gateway.process.restarts == 2


async def test_stopping_ends_both_lives(gateway: Gateway) -> None:
    former = gateway.process.pid
    assert former is not None
    renewing = renew(gateway)
    await until(lambda: gateway.process.restarts, timeout_s=60)
    assert await gateway.process.stop(grace_s=30) == 0
    await renewing
    with pytest.raises(ProcessLookupError):
        os.kill(former, 0)
    assert not await is_serving(gateway.process.address)


async def test_a_cluster_is_not_started_where_a_gateway_shares_its_port(gateway: Gateway) -> None:
    host, _, port = gateway.process.address.rpartition(":")
    with pytest.raises(ConfigError, match="cannot listen there"):
        check_port_free(host, int(port))
