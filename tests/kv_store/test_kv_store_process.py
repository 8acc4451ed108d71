"""kv_store as its users run it: a process with a ready file, that a signal ends cleanly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.cli.cluster_metrics import fetch_readings, total
from common.config import KvStoreConfig, load_config
from common.errors import ConfigError, Reason
from common.metrics.catalogue import LEAKED_LEASES
from common.rpc.channel import open_channel
from common.rpc.healthcheck import is_serving
from common.rpc.status import wire_error
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc
from services.kv_store.redis_store import PREFIX
from tests.kv_store.registry import attempt, entry, life
from tests.redis_server import RedisServer, free_port

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 30
REGISTRIES = "must be memory or redis://host:port/db (db: a number, 0 if left out)"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "protos")))}


@asynccontextmanager
async def started(ready: Path, *argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process, perhaps not ready yet; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.kv_store", "--ready-file", str(ready), *argv),
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def kv_store(tmp_path: Path, *argv: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """The process and what its ready file says."""
    async with started(tmp_path / "ready.json", *argv) as process:
        yield process, await facts_in(tmp_path / "ready.json", process)


async def facts_in(ready: Path, process: asyncio.subprocess.Process) -> dict[str, Any]:
    """What the ready file says, once it is there."""
    async with asyncio.timeout(START_LIMIT_S):
        while (facts := read_facts(ready)) is None:  # a file has no event
            assert process.returncode is None
            await asyncio.sleep(0.02)
    return facts


def read_facts(ready: Path) -> dict[str, Any] | None:
    return json.loads(ready.read_text()) if ready.exists() else None


async def line_with(text: str, process: asyncio.subprocess.Process) -> str:
    """The next line on stderr that holds `text`."""
    assert process.stderr is not None
    async with asyncio.timeout(START_LIMIT_S):
        while line := (await process.stderr.readline()).decode():
            if text in line:
                return line
    raise AssertionError(f"the process ended without a word of {text!r}")


async def health_becomes(serving: bool, address: str) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:  # asked, not watched: what a probe sees
            if await is_serving(address, service="sangam.v1.KvRegistryService") is serving:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_ready_file_serving_signal_exit_0(tmp_path, number):
    async with kv_store(tmp_path) as (process, facts):
        assert facts == {"service": "kv_store", "address": facts["address"], "pid": process.pid}
        assert await is_serving(facts["address"])
        assert await is_serving(facts["address"], service="sangam.v1.KvRegistryService")
        async with open_channel(facts["address"]) as channel:
            stub = kv_registry_pb2_grpc.KvRegistryServiceStub(channel)
            assert list((await stub.GetKv(pb.GetKvRequest(), timeout=10)).entries) == []
            process.send_signal(number)  # while the connection is still open
            async with asyncio.timeout(START_LIMIT_S):
                _, errors = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in errors
        assert b"kv_store stopped" in errors


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--port", "x"], "sangam kv_store: error: --port: must be a whole number, not 'x'\n"),
        (["--registry", "paper"], f"sangam kv_store: error: --registry: {REGISTRIES}\n"),
        (["--nonsense"], "sangam kv_store: error: unrecognized arguments: --nonsense\n"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(argv, text):
    command = [sys.executable, "-m", "services.kv_store", *argv]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=START_LIMIT_S)
    assert (done.returncode, done.stderr) == (2, text)


async def test_two_processes_share_a_registry_in_redis_and_one_may_restart(tmp_path, redis_server):
    (tmp_path / "one").mkdir()
    async with kv_store(tmp_path, "--registry", redis_server.url) as (_, other):
        async with kv_store(tmp_path / "one", "--registry", redis_server.url) as (_, one):
            assert await is_serving(one["address"], service="sangam.v1.KvRegistryService")
            async with open_channel(one["address"]) as channel:
                stub = kv_registry_pb2_grpc.KvRegistryServiceStub(channel)
                request = pb.PublishKvRequest(entries=[entry("a")])
                assert list((await stub.PublishKv(request, timeout=10)).outcomes) == [pb.KV_OUTCOME_OK]
        async with open_channel(other["address"]) as channel:
            stub = kv_registry_pb2_grpc.KvRegistryServiceStub(channel)
            found = await stub.GetKv(pb.GetKvRequest(attempts=[attempt("a")]), timeout=10)
            assert [item.owner for item in found.entries] == [life()]


async def test_health_follows_redis_and_calls_without_it_are_unavailable(tmp_path, redis_server):
    async with kv_store(tmp_path, "--registry", redis_server.url) as (process, facts):
        redis_server.kill()
        line = await line_with("does not answer", process)
        assert redis_server.url in line
        await health_becomes(False, facts["address"])
        async with open_channel(facts["address"]) as channel:
            stub = kv_registry_pb2_grpc.KvRegistryServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetKv(pb.GetKvRequest(attempts=[attempt("a")]), timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert wire_error(caught.value).reason is Reason.PEER_LOST
            redis_server.start()
            await health_becomes(True, facts["address"])
            assert list((await stub.GetKv(pb.GetKvRequest(attempts=[attempt("a")]), timeout=10)).entries) == []
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_LIMIT_S):
            _, errors = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in errors


async def test_a_lease_that_redis_keeps_for_nobody_is_shown_and_told(tmp_path, redis_server):
    async with kv_store(tmp_path, "--registry", redis_server.url) as (process, facts):
        async with open_channel(facts["address"]) as channel:
            stub = kv_registry_pb2_grpc.KvRegistryServiceStub(channel)
            await stub.PublishKv(pb.PublishKvRequest(entries=[entry("a"), entry("b")]), timeout=10)
        # As by a bug: no fence will find it.
        redis_server.command("ZREM", f"{PREFIX}owner:p0", "0/0/a")
        await leaked_leases_become(1, facts["address"])
        assert "entry of 0/0/a, not known by its owner" in await line_with("leaked leases", process)
        redis_server.command("DEL", f"{PREFIX}entry:0/0/a")
        await leaked_leases_become(0, facts["address"])


async def leaked_leases_become(count: int, address: str) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:  # asked: a gauge tells nobody
            if total(await fetch_readings(address) or (), LEAKED_LEASES.about.name) == count:
                return
            await asyncio.sleep(0.1)


async def test_a_redis_that_comes_later_is_waited_for(tmp_path):
    server, ready = RedisServer(tmp_path), tmp_path / "ready.json"
    port = free_port()
    try:
        async with started(ready, "--port", str(port), "--registry", server.url) as process:
            assert f"the registry in {server.url} does not answer" in await line_with("registry in", process)
            assert not await is_serving(f"127.0.0.1:{port}")
            assert not ready.exists()
            server.start()
            assert (await facts_in(ready, process))["address"] == f"127.0.0.1:{port}"
            assert await is_serving(f"127.0.0.1:{port}")
    finally:
        server.stop()


async def test_a_signal_ends_the_wait_for_redis(tmp_path):
    url = f"redis://127.0.0.1:{free_port()}"
    async with started(tmp_path / "ready.json", "--registry", url) as process:
        await line_with("does not answer", process)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_LIMIT_S):
            _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:6379", "redis://redis.svc:6379/15", "redis://[::1]:6379/0", "memory"]
)
def test_registries(url):
    assert load_config(KvStoreConfig, ["--registry", url], "x", environ={}).registry == url
    assert load_config(KvStoreConfig, [], "x", environ={"SANGAM_REGISTRY": url}).registry == url


@pytest.mark.parametrize(
    "url",
    [
        *("", "Memory", "redis://", "redis://host", "redis://host:0/0", "redis://host:70000/0", "redis://:6379/0"),
        *(
            "redis://host:6379/x",
            "redis://host:6379/0/1",
            "redis://host:6379/-1",
            "rediss://host:6379/0",
            "redis://h :1",
        ),
        *("redis://host:6379/0?db=1", "redis://host:6379/0#1", "host:6379", "redis://user:secret@host:6379/0"),
    ],
)
def test_other_registries_are_refused_by_name_and_not_repeated(url):
    with pytest.raises(ConfigError) as caught:
        load_config(KvStoreConfig, ["--registry", url], "x", environ={})
    assert str(caught.value) == f"--registry: {REGISTRIES}"


async def test_a_port_in_use_is_one_line_and_exit_2(tmp_path):
    async with kv_store(tmp_path) as (_, facts):
        port = facts["address"].rpartition(":")[2]
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "services.kv_store", "--port", port),
            env=environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await second.communicate()
    assert second.returncode == 2
    assert errors.decode() == f"sangam kv_store: error: --host, --port: cannot listen on 127.0.0.1:{port}\n"


def test_the_service_imports_no_torch():
    code = "import sys, services.kv_store.app; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
