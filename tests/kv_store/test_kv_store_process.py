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

import pytest

from common.rpc.channel import open_channel
from common.rpc.healthcheck import is_serving
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 30


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "protos")))}


@asynccontextmanager
async def kv_store(tmp_path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """The process and what its ready file says; killed at the end if it still runs."""
    ready = tmp_path / "ready.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.kv_store", "--ready-file", str(ready)),
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while not ready.exists():  # a file has no event
                assert process.returncode is None
                await asyncio.sleep(0.02)
        yield process, json.loads(ready.read_text())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


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
        (["--registry", "paper"], "sangam kv_store: error: --registry: must be one of memory, not 'paper'\n"),
        (["--nonsense"], "sangam kv_store: error: unrecognized arguments: --nonsense\n"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(argv, text):
    command = [sys.executable, "-m", "services.kv_store", *argv]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=START_LIMIT_S)
    assert (done.returncode, done.stderr) == (2, text)


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
