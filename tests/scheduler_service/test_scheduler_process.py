"""The scheduler's own life: as a process, and when its core has a bug."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.cli.supervisor import child_environment
from common.clock import MonotonicClock
from common.core.effects import SchedulerEffect
from common.core.events import SchedulerEvent, Tick
from common.core.ids import ServingMode
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.errors import Reason, WireError
from common.rpc.convert import request_spec_from_proto
from services.scheduler.fencing import RegistryFencer
from services.scheduler.liveness import Liveness
from services.scheduler.shell import SchedulerShell
from services.scheduler.worker_calls import WorkerCalls
from tests.scheduler_service.conftest import make_request


def scheduler_process(ready_file: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.scheduler", "--ready-file", str(ready_file), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


def test_process_says_where_it_serves_and_ends_in_order(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    process = scheduler_process(ready_file, "--mode", "colocated")
    ends_s = time.monotonic() + 30
    while not ready_file.exists():
        assert process.poll() is None and time.monotonic() < ends_s
        time.sleep(0.02)
    ready = json.loads(ready_file.read_text())
    assert ready["service"] == "scheduler"
    assert ready["pid"] == process.pid
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in words


def test_bad_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    process = scheduler_process(tmp_path / "ready.json", "--overload-threshold", "0")
    _, words = process.communicate(timeout=30)
    assert process.returncode == 2
    assert words.startswith("sangam scheduler: error: --overload-threshold")
    assert words.count("\n") == 1
    assert not (tmp_path / "ready.json").exists()


class BrokenCore(SchedulerCore):
    """A core with a bug in its handling of time."""

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerEffect]:
        """Break on a Tick."""
        assert not isinstance(event, Tick), "scripted bug"
        return super().handle(event, now)


async def test_bug_in_the_core_ends_the_service_even_when_a_handler_met_it() -> None:
    shell = SchedulerShell(
        core=BrokenCore(SchedulerConfig(mode=ServingMode.COLOCATED)),
        clock=MonotonicClock(),
        liveness=Liveness(timeout_s=3.0),
        calls=WorkerCalls(),
        fencer=RegistryFencer(""),
    )
    running = asyncio.create_task(shell.run())
    await asyncio.sleep(0)
    spec = request_spec_from_proto(make_request(), deadline_s=None)
    shell.submit(spec)
    with pytest.raises(AssertionError, match="scripted bug"):
        shell.apply(Tick())
    with pytest.raises(ExceptionGroup) as caught:
        await running
    assert caught.group_contains(AssertionError, match="scripted bug")
    # Half-applied state is never served.
    with pytest.raises(WireError) as refused:
        shell.submit(spec)
    assert refused.value.reason is Reason.SCHEDULER_UNAVAILABLE
