"""The gateway as a process: what it needs before it opens a port, how it says it is ready, how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.rpc.channel import open_channel
from common.rpc.healthcheck import is_serving
from sangam.v1 import inference_pb2_grpc
from tests.gateway.running_gateway import generate_request, take
from tests.gateway.scripted_scheduler import finished, play, queued, revealed_tokens, step

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos")])}


def gateway_command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "services.gateway", *flags]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model-dir=/nonexistent", "--scheduler-address=127.0.0.1:1"], "/nonexistent/config.json"),
        (["--scheduler-address=127.0.0.1:1"], "--model-dir"),
        (["--model-dir=/nonexistent", "--scheduler-address=nowhere"], "--scheduler-address"),
    ],
    ids=["no model", "no flag", "bad address"],
)
def test_a_users_mistake_is_one_line_and_no_ready_file(tmp_path, flags, named):
    ready = tmp_path / "ready.json"
    command = gateway_command(*flags, f"--ready-file={ready}")
    ended = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("sangam gateway: error: ") and ended.stderr.count("\n") == 1
    assert named in ended.stderr
    assert ended.stdout == "" and not ready.exists()


async def test_ready_file_health_and_a_sigterm_that_lets_requests_end(tmp_path, model_dir, scheduler):
    release = asyncio.Event()

    async def held(request, context):
        async for response in play(queued())(request, context):
            yield response
        await release.wait()
        async for response in play(step(0, 0, revealed_tokens(b"abcd")), finished())(request, context):
            yield response

    scheduler.script(held)
    ready = tmp_path / "ready.json"
    flags = [f"--model-dir={model_dir}", f"--scheduler-address={scheduler.address}", f"--ready-file={ready}"]
    process = await asyncio.create_subprocess_exec(
        *gateway_command(*flags), cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE
    )
    try:
        facts = await ready_facts(ready)
        assert (facts["service"], facts["pid"]) == ("gateway", process.pid)
        assert await is_serving(facts["address"], service="sangam.v1.InferenceService")
        async with open_channel(facts["address"]) as channel:
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(generate_request(), timeout=30)
            await take(call, "accepted")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while True:
                    if not await is_serving(facts["address"]):
                        break
                    await asyncio.sleep(0.02)
            release.set()
            assert (await take(call, "committed")).text == "abcd"
            await take(call, "finished")
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0
        assert b"Traceback" not in errors
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ready_facts(path: Path) -> Any:
    async with asyncio.timeout(30):
        while True:
            if await asyncio.to_thread(path.exists):
                return json.loads(await asyncio.to_thread(path.read_text))
            await asyncio.sleep(0.02)


def test_the_gateway_loads_no_torch():
    script = "import sys, services.gateway.service; print([name for name in ('torch',) if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "[]\n", ended.stderr
