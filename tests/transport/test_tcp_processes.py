"""TCP between two processes, one of which is killed, stopped, or well."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.errors import Reason, WireError
from common.transport.frames import MAX_DATA_BYTES
from common.transport.tcp import TcpTransport
from tests.transport.doubles import MemoryProvider, MemorySink, handle_for, random_layers

REPO = Path(__file__).resolve().parents[2]
LAYERS, LAYER_BYTES = 4, 3 * MAX_DATA_BYTES


@contextlib.asynccontextmanager
async def process(*args: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A helper process and the first line it prints; killed and reaped at the end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *args,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'protos'}"},
    )
    try:
        assert child.stdout is not None
        line = await asyncio.wait_for(child.stdout.readline(), 60.0)
        yield child, line.decode().strip()
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def owner_process(
    die_at_check: int = 0,
) -> contextlib.AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]:
    script = str(Path(__file__).with_name("peer_process.py"))
    return process(script, str(LAYERS), str(LAYER_BYTES), str(die_at_check))


async def fetch(address: str, timeout_s: float = 30.0) -> MemorySink:
    sink = MemorySink(LAYERS, LAYER_BYTES, piece_bytes=131_072, gap_bytes=512)
    reader = TcpTransport()
    try:
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=timeout_s)
    finally:
        await reader.aclose()
    return sink


async def failure_of(address: str, timeout_s: float = 30.0) -> Reason:
    with pytest.raises(WireError) as caught:
        await fetch(address, timeout_s)
    return caught.value.reason


async def test_bytes_cross_processes() -> None:
    async with owner_process() as (_, address):
        sinks = await asyncio.gather(*(fetch(address) for _ in range(3)))
    assert all(sink.content == random_layers(LAYERS, LAYER_BYTES) for sink in sinks)


async def test_owner_killed_before_the_connection() -> None:
    async with owner_process() as (child, address):
        child.kill()
        await child.wait()
        assert await failure_of(address) is Reason.PEER_LOST


@pytest.mark.parametrize("check", [1, 2, 6, LAYERS * 3 + 1])
async def test_owner_killed_while_it_sends(check: int) -> None:
    async with owner_process(check) as (child, address):
        assert await failure_of(address) is Reason.PEER_LOST
        assert await child.wait() == -signal.SIGKILL


async def test_a_stopped_owner_is_given_up() -> None:
    async with owner_process() as (child, address):
        child.send_signal(signal.SIGSTOP)
        assert await failure_of(address, timeout_s=0.5) is Reason.PEER_LOST


async def test_reader_killed_while_it_receives() -> None:
    provider, owner = MemoryProvider(), TcpTransport()
    lease = provider.lend(random_layers(LAYERS, LAYER_BYTES))
    lease.gates[2] = asyncio.Event()
    address = await owner.listen("127.0.0.1", provider)
    program = (
        "import asyncio, sys\n"
        "from tests.transport.test_tcp_processes import fetch\n"
        "print('started', flush=True)\n"
        "asyncio.run(fetch(sys.argv[1]))\n"
    )
    try:
        async with process("-c", program, address) as (child, _):
            await lease.until_reached(2)
            child.kill()
            await child.wait()
            assert await lease.until_closed() == [False]
    finally:
        await owner.aclose()
