"""A worker that stands still does not hold a scheduler back that is told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from common.core.ids import Role, ServingMode
from common.rpc import options
from common.rpc.convert import worker_spec_to_proto
from tests.scheduler_service.conftest import Scheduler, StartScheduler
from tests.scheduler_service.scripted import ScriptedWorker

PATIENCE_S = 60.0
NEVER_MS = 3_600_000
BEYOND_ANY_WINDOW = 12_000_000
"""Letters of a worker's name: to say it exceeds what connection and sockets hold for a peer that does not read."""


@asynccontextmanager
async def _frozen_worker(scheduler: Scheduler) -> AsyncIterator[None]:
    """A worker that has registered, reads its streams, and then stands still."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.scheduler_service.frozen_worker", scheduler.address),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"watches\n"
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.kill()
        await process.wait()


async def _say_much_to_all_workers(scheduler: Scheduler) -> None:
    """Have two lives of one worker follow each other: every other worker is told that the first is lost."""
    for incarnation in (1, 2):
        worker = ScriptedWorker("w" * BEYOND_ANY_WINDOW, Role.DECODE, incarnation=incarnation)
        registration = worker_spec_to_proto(worker.spec())
        registration.address = "127.0.0.1:9"
        await scheduler.stub.RegisterWorker(registration)


@pytest.mark.parametrize("much", [False, True], ids=["nothing-unread", "much-unread"])
async def test_a_worker_that_stands_still_does_not_hold_a_stop_back(
    start_scheduler: StartScheduler, monkeypatch: pytest.MonkeyPatch, much: bool
) -> None:
    # Nothing but the stop itself ends the connection.
    for setting in ("_KEEPALIVE_TIME_MS", "_KEEPALIVE_TIMEOUT_MS"):
        monkeypatch.setattr(options, setting, NEVER_MS)
    scheduler = await start_scheduler(mode=ServingMode.COLOCATED, heartbeat_timeout_s=3600.0)
    async with _frozen_worker(scheduler):
        if much:
            await _say_much_to_all_workers(scheduler)
        scheduler.stop.set()
        await asyncio.wait_for(asyncio.shield(scheduler.ended), PATIENCE_S)
