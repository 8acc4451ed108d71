"""The worker services as processes: what a user sees of a mistake, of a start, of a SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.core.ids import Role
from common.core.params import ConfidenceQuota
from common.core.work import LocalPrefill
from common.errors import Reason
from common.rpc.channel import open_channel
from common.rpc.convert import block_work_to_proto, kv_source_to_proto
from common.rpc.status import wire_error
from sangam.v1 import decode_pb2, decode_pb2_grpc
from tests.engine.checkpoints import GOLDEN_DIR, spoiled_copy
from tests.engine.runs import request
from tests.worker.harness import Outcome, block_work, read_decode
from tests.worker.scripted_scheduler import SchedulerServer
from tests.worker.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


async def spawn(service: str, *flags: str, import_first: Path = ROOT) -> asyncio.subprocess.Process:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SANGAM_")},
        "PYTHONPATH": os.pathsep.join(str(path) for path in (import_first, ROOT, ROOT / "protos")),
        "OMP_NUM_THREADS": "1",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", service, *flags, cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )


async def end_of(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Exit code and everything on stderr."""
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.parametrize("service", ["services.decode_worker", "services.prefill_worker"])
async def test_a_missing_model_is_one_line_before_any_port_is_tried(service: str, tmp_path: Path) -> None:
    # The port is taken: had the worker tried it first, it would complain of that.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await spawn(
            service,
            f"--port={taken.getsockname()[1]}",
            "--scheduler-address=127.0.0.1:1",
            f"--model-dir={tmp_path / 'no-model'}",
            f"--ready-file={tmp_path / 'ready'}",
        )
        code, errors = await end_of(process)
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"sangam {service.removeprefix('services.')}: error: ")
    assert str(tmp_path / "no-model" / "config.json") in line
    assert not (tmp_path / "ready").exists()


async def test_a_damaged_checkpoint_names_file_and_tensor(tmp_path: Path) -> None:
    golden = GOLDEN_DIR / "llada-gqa"
    (tmp_path / "config.json").write_bytes((golden / "config.json").read_bytes())
    weights = (golden / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights.replace(b"blocks.1.q_proj", b"blocks.1.z_proj"))
    code, errors = await end_of(
        await spawn("services.decode_worker", "--scheduler-address=127.0.0.1:1", f"--model-dir={tmp_path}")
    )
    assert code == 2
    (line,) = errors.splitlines()
    tensor = "model.transformer.blocks.1.q_proj.weight"
    assert line == f"sangam decode_worker: error: {tmp_path / 'model.safetensors'}: tensor {tensor} is missing"


async def test_weights_that_are_not_finite_are_named_before_any_port_is_tried(tmp_path: Path) -> None:
    name = spoiled_copy(GOLDEN_DIR / "llada-gqa", tmp_path / "bad", float("nan"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await spawn(
            "services.decode_worker",
            f"--port={taken.getsockname()[1]}",
            "--scheduler-address=127.0.0.1:1",
            f"--model-dir={tmp_path / 'bad'}",
            f"--ready-file={tmp_path / 'ready'}",
        )
        code, errors = await end_of(process)
    assert code == 2 and not (tmp_path / "ready").exists()
    weights = tmp_path / "bad" / "model.safetensors"
    assert errors == f"sangam decode_worker: error: {weights}: tensor {name} holds NaN or infinity\n"


async def test_a_taken_port_is_a_line_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await spawn(
            "services.decode_worker",
            f"--port={taken.getsockname()[1]}",
            "--scheduler-address=127.0.0.1:1",
            f"--model-dir={GOLDEN_DIR / 'llada-gqa'}",
            "--log-level=error",
        )
        code, errors = await end_of(process)
    assert code == 2
    (line,) = errors.splitlines()
    assert "--port" in line


@pytest.mark.parametrize("role", list(Role))
async def test_a_worker_waits_for_its_scheduler_and_ends_on_sigterm(role: Role, tmp_path: Path) -> None:
    scheduler = SchedulerServer()
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    process = await spawn(
        f"services.{role.value}_worker",
        f"--scheduler-address=127.0.0.1:{port}",
        "--worker-id=w",
        f"--model-dir={GOLDEN_DIR / 'llada-gqa'}",
        f"--ready-file={tmp_path / 'ready'}",
    )
    try:
        await eventually((tmp_path / "ready").exists)
        ready = json.loads((tmp_path / "ready").read_text())
        assert (ready["service"], ready["worker_id"], ready["pid"]) == (f"{role.value}_worker", "w", process.pid)
        async with open_channel(ready["address"]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", f"sangam.v1.{role.value.capitalize()}Service"):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)
                assert reply.status == NOT_SERVING
            await scheduler.start(port)
            await scheduler.scheduler.until(lambda: bool(scheduler.scheduler.heartbeats))
            life = scheduler.scheduler.registered[0]
            assert (life.worker_id, life.incarnation) == ("w", ready["incarnation"])
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
        process.send_signal(signal.SIGTERM)
        code, errors = await end_of(process)
        assert code == 0
        assert "Traceback" not in errors
        assert any(beat.draining for beat in scheduler.scheduler.heartbeats)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await scheduler.stop()


@pytest.mark.parametrize("role", list(Role))
async def test_sigterm_while_the_model_loads_ends_the_worker_at_once(role: Role, tmp_path: Path) -> None:
    # A torch whose import never ends: loading is under way for as long as the test likes.
    (tmp_path / "torch.py").write_text("import sys, time\nprint('loading', file=sys.stderr)\ntime.sleep(3600)\n")
    process = await spawn(
        f"services.{role.value}_worker",
        "--scheduler-address=127.0.0.1:1",
        f"--model-dir={GOLDEN_DIR / 'llada-gqa'}",
        f"--ready-file={tmp_path / 'ready'}",
        import_first=tmp_path,
    )
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stderr.readline() == b"loading\n"
    process.send_signal(signal.SIGTERM)
    code, errors = await end_of(process)
    assert code == 0
    assert "Traceback" not in errors
    assert not (tmp_path / "ready").exists(), "no port was opened"


async def test_a_worker_whose_forward_hangs_ends_itself_with_an_error(tmp_path: Path) -> None:
    process = await spawn(
        "tests.worker.hanging_worker",
        "--scheduler-address=127.0.0.1:1",
        f"--model-dir={GOLDEN_DIR / 'llada-gqa'}",
        f"--ready-file={tmp_path / 'ready'}",
        "--stuck-forward-s=0.2",
    )
    await eventually((tmp_path / "ready").exists)
    ready = json.loads((tmp_path / "ready").read_text())
    request_to_it = decode_pb2.DecodeRequest(
        work=block_work_to_proto(
            block_work(request(strategy=ConfidenceQuota(4))), target_incarnation=ready["incarnation"]
        )
    )
    kv_source_to_proto(LocalPrefill(), request_to_it)
    async with open_channel(ready["address"]) as channel:
        call = decode_pb2_grpc.DecodeServiceStub(channel).Decode(request_to_it)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_decode(call, Outcome())
        assert wire_error(caught.value).reason is Reason.PEER_LOST
    code, errors = await end_of(process)
    assert code == 1
    assert "a forward has run for more than 0.2 s" in errors


async def test_a_worker_that_never_found_its_scheduler_ends_on_sigterm(tmp_path: Path) -> None:
    process = await spawn(
        "services.decode_worker",
        "--scheduler-address=127.0.0.1:1",
        "--kv-store-address=127.0.0.1:1",
        f"--model-dir={GOLDEN_DIR / 'llada-gqa'}",
        f"--ready-file={tmp_path / 'ready'}",
    )
    await eventually((tmp_path / "ready").exists)
    process.send_signal(signal.SIGTERM)
    code, errors = await end_of(process)
    assert code == 0
    assert "Traceback" not in errors
