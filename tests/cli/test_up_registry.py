"""`--schedulers` and `--registry` of `sangam up`: what is refused, and the redis-server of a cluster's own."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from common.cli.main import main
from common.cli.supervisor import ManagedProcess, ProcessSpec
from common.redis_address import RedisAddress
from services.scheduler.redis_lease import RedisLease
from tests.integration.cluster_help import random_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--schedulers", "0"), "--schedulers: must be 1 or more, not 0"),
        (("--registry", "disk"), "--registry: must be memory or redis://host:port/db (db: a number, 0 if left out)"),
        (("--registry", "redis://host"), "--registry: must be memory or redis://host:port/db"),
    ],
)
def test_bad_flags_are_named(
    flags: tuple[str, ...], said: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["up", "--grpc-port", "0", "--model", str(model_dir), "--run-dir", str(tmp_path / "run"), *flags]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sangam up: error: {said}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_two_schedulers_without_any_redis_say_what_to_do(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up", "--grpc-port", "0", "--model", str(model_dir), "--schedulers", "2"]) == 2
    error = capsys.readouterr().err
    assert "--schedulers 2" in error and "install redis-server" in error and "--registry redis://" in error
    assert error.count("\n") == 1


async def test_a_clusters_own_redis_serves_on_loopback_and_ends_with_its_supervisor_process(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = ProcessSpec(name="redis", module="common.cli.redis_process", arguments=(), may_end=False)
    process = ManagedProcess(spec, run_dir=tmp_path, say=lines.append)
    await process.start(timeout_s=60)
    supervising = asyncio.create_task(process.supervise())
    assert process.address.startswith("127.0.0.1:")
    await leases(process.address)
    # Killed outright, it takes the server with it, or the next life could not have the port.
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while not any("redis is back" in line for line in lines):  # noqa: ASYNC110  # another process makes it come true
            await asyncio.sleep(0.02)
    await leases(process.address)
    assert await process.stop(grace_s=20) == 0
    await supervising
    with pytest.raises(OSError):
        await asyncio.open_connection(*process.address.split(":"))


async def leases(address: str) -> None:
    """A lease can be had from the Redis there, which had none."""
    lease = RedisLease(RedisAddress.parse(f"redis://{address}/0"), name="n", ttl_s=30.0)
    assert isinstance(await lease.take(least_term=1), int)
    await lease.aclose()
