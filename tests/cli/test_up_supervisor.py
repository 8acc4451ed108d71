"""`common.cli.supervisor` with a real service (the registry, the quickest to start)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from common.cli.supervisor import ManagedProcess, ProcessSpec, ServiceFailed, advice, describe_exit


def kv_store(run_dir: Path, say: Callable[[str], None], *arguments: str, may_end: bool = False) -> ManagedProcess:
    spec = ProcessSpec(name="kv_store", module="services.kv_store", arguments=arguments, may_end=may_end)
    return ManagedProcess(spec, run_dir=run_dir, say=say)


async def until_said(lines: list[str], words: str) -> None:
    async with asyncio.timeout(30):
        while not any(words in line for line in lines):  # noqa: ASYNC110  # another process makes it come true
            await asyncio.sleep(0.02)


async def test_killed_service_is_restarted_at_its_place_and_said_so(tmp_path: Path) -> None:
    lines: list[str] = []
    process = kv_store(tmp_path, lines.append)
    await process.start(timeout_s=30)
    address, pid = process.address, process.pid
    assert pid is not None
    supervising = asyncio.create_task(process.supervise())
    os.kill(pid, signal.SIGKILL)
    await until_said(lines, "kv_store is back")
    assert "kv_store ended (killed by SIGKILL); restarting it in 0.1 s" in lines
    assert process.address == address
    assert process.pid not in (None, pid)
    assert process.restarts == 1
    assert await process.stop(grace_s=10) == 0
    await supervising
    assert process.pid is None


async def test_service_that_ends_in_order_is_restarted_unless_it_may_end(tmp_path: Path) -> None:
    for may_end, words in ((False, "ended (exit code 0); restarting"), (True, "it is not restarted")):
        lines: list[str] = []
        process = kv_store(tmp_path, lines.append, may_end=may_end)
        await process.start(timeout_s=30)
        supervising = asyncio.create_task(process.supervise())
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        await until_said(lines, words)
        if may_end:
            await supervising
        else:
            await until_said(lines, "is back")
            await process.stop(grace_s=10)
            await supervising
        assert process.restarts == (0 if may_end else 1)


async def test_a_later_life_that_hangs_before_it_serves_is_killed_and_followed_by_another(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = ProcessSpec(
        name="sleeper", module="tests.cli.ill_service", arguments=(str(tmp_path), "--hangs=2"), may_end=False
    )
    process = ManagedProcess(spec, run_dir=tmp_path, say=lines.append)
    await process.start(timeout_s=8)
    supervising = asyncio.create_task(process.supervise())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await until_said(lines, "sleeper did not serve within 8 s; killing it")
    await until_said(lines, "sleeper is back")
    assert process.restarts == 2
    await process.stop(grace_s=10)
    await supervising


async def test_only_lives_that_never_served_are_followed_later_and_later(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = ProcessSpec(
        name="sprinter", module="tests.cli.ill_service", arguments=(str(tmp_path), "--ends=2,3"), may_end=False
    )
    process = ManagedProcess(spec, run_dir=tmp_path, say=lines.append)
    await process.start(timeout_s=30)
    supervising = asyncio.create_task(process.supervise())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await until_said(lines, "sprinter is back")
    pauses = [line.rpartition(" in ")[2] for line in lines if "restarting it" in line]
    assert pauses == ["0.1 s", "0.2 s", "0.4 s"]
    lines.clear()
    os.kill(process.pid, signal.SIGKILL)
    await until_said(lines, "sprinter ended (killed by SIGKILL); restarting it in 0.1 s")
    await process.stop(grace_s=10)
    await supervising


async def test_service_that_does_not_start_is_shown_with_its_last_words(tmp_path: Path) -> None:
    process = kv_store(tmp_path, lambda line: None, "--log-level", "loud")
    with pytest.raises(ServiceFailed) as caught:
        await process.start(timeout_s=30)
    text = str(caught.value)
    assert "kv_store ended while starting (exit code 2)" in text
    assert "sangam kv_store: error: --log-level" in text and "loud" in text
    assert str(tmp_path / "kv_store.log") in text
    assert process.pid is None


async def test_service_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    lines: list[str] = []
    process = kv_store(tmp_path, lines.append)
    await process.start(timeout_s=30)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert await process.stop(grace_s=0.2) == -signal.SIGKILL
    assert any("killing it" in line for line in lines)


async def test_processes_are_sessions_of_their_own(tmp_path: Path) -> None:
    process = kv_store(tmp_path, lambda line: None)
    await process.start(timeout_s=30)
    assert process.pid is not None
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    await process.stop(grace_s=10)


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_advice_follows_from_the_last_words() -> None:
    assert "--grpc-port" in advice(["cannot listen: Address already in use"])
    assert "--device cpu" in advice(["error: CUDA is not available"])
    assert "--log-level debug" in advice(["something else"])
