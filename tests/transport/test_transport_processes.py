"""The transports between two processes, one of which is killed, stopped, or well."""

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
from common.transport.socket_transport import SocketTransport
from tests.transport.doubles import PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.kinds import KINDS

REPO = Path(__file__).resolve().parents[2]
LAYERS, LAYER_BYTES = 4, 3 * MAX_DATA_BYTES
SOON_S = 5.0
"""Far below every timeout of the transports, far above what noticing a dead peer takes."""


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
    kind: str, at_check: int = 0, signal_number: int = signal.SIGKILL
) -> contextlib.AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]:
    script = str(Path(__file__).with_name("peer_process.py"))
    return process(script, kind, str(LAYERS), str(LAYER_BYTES), str(at_check), str(int(signal_number)))


@contextlib.asynccontextmanager
async def transport(kind: str) -> AsyncIterator[SocketTransport]:
    made = KINDS[kind]()
    try:
        yield made
    finally:
        await made.aclose()


def new_sink(*, scattered: bool = True) -> MemorySink:
    cut = {"piece_bytes": 131_072, "gap_bytes": 512} if scattered else {}
    return MemorySink(LAYERS, LAYER_BYTES, **cut)


async def failure_of(reader: SocketTransport, address: str, sink: MemorySink, timeout_s: float) -> Reason:
    with pytest.raises(WireError) as caught:
        await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=timeout_s)
    return caught.value.reason


@pytest.mark.parametrize("scattered", [True, False])
async def test_bytes_cross_processes(kind: str, scattered: bool) -> None:
    async with owner_process(kind) as (_, address), transport(kind) as reader:
        for _ in range(2):
            sinks = [new_sink(scattered=scattered) for _ in range(3)]
            await asyncio.gather(
                *(reader.fetch(handle=handle_for(address), sink=sink, timeout_s=30.0) for sink in sinks)
            )
            assert all(sink.content == random_layers(LAYERS, LAYER_BYTES) for sink in sinks)


async def test_owner_killed_before_the_connection(kind: str) -> None:
    async with owner_process(kind) as (child, address), transport(kind) as reader:
        child.kill()
        await child.wait()
        assert await failure_of(reader, address, new_sink(), 30.0) is Reason.PEER_LOST


async def test_owner_killed_between_two_reads(kind: str) -> None:
    """What the reader has kept of the first read is of no use, and it says so at once."""
    async with owner_process(kind) as (child, address), transport(kind) as reader:
        await reader.fetch(handle=handle_for(address), sink=new_sink(), timeout_s=30.0)
        child.kill()
        await child.wait()
        async with asyncio.timeout(SOON_S):
            assert await failure_of(reader, address, new_sink(), 30.0) is Reason.PEER_LOST


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("check", [1, 2, 6, LAYERS * 2])
async def test_owner_killed_while_it_sends(kind: str, check: int, scattered: bool) -> None:
    async with owner_process(kind, check) as (child, address), transport(kind) as reader:
        async with asyncio.timeout(SOON_S):
            assert await failure_of(reader, address, new_sink(scattered=scattered), 30.0) is Reason.PEER_LOST
            assert await child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("check", [2, 6])
async def test_an_owner_stopped_in_the_middle_writes_nothing_when_it_goes_on(kind: str, check: int) -> None:
    """Its reader gives up and has other uses for the memory; the owner wakes up and knows nothing of it."""
    async with owner_process(kind, check, signal.SIGSTOP) as (child, address), transport(kind) as reader:
        sink = new_sink(scattered=False)
        assert await failure_of(reader, address, sink, timeout_s=1.0) is Reason.PEER_LOST
        for layer in range(LAYERS):
            for view in sink.views(layer):
                view[:] = b"\x55" * len(view)
        child.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.3)
        assert sink.content == [b"\x55" * LAYER_BYTES] * LAYERS


async def test_a_stopped_owner_is_given_up(kind: str) -> None:
    async with owner_process(kind) as (child, address), transport(kind) as reader:
        child.send_signal(signal.SIGSTOP)
        assert await failure_of(reader, address, new_sink(), timeout_s=0.5) is Reason.PEER_LOST


READER = """
import asyncio, sys
from tests.transport.doubles import handle_for
from tests.transport.test_transport_processes import KINDS, new_sink

async def main(kind, address):
    await KINDS[kind]().fetch(handle=handle_for(address), sink=new_sink(), timeout_s=60.0)

print("started", flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
async def test_reader_killed_or_stopped_while_it_receives(kind: str, signal_number: int) -> None:
    """A killed one is noticed; a stopped one holds nothing once the owner takes the pages back."""
    provider = MemoryProvider()
    lease = provider.lend(random_layers(LAYERS, LAYER_BYTES))
    lease.gates[2] = asyncio.Event()
    async with transport(kind) as owner:
        address = await owner.listen("127.0.0.1", provider)
        async with process("-c", READER, kind, address) as (child, _), asyncio.timeout(PATIENCE_S):
            await lease.until_reached(2)
            child.send_signal(signal_number)
            if signal_number == signal.SIGSTOP:
                lease.gates[2].set()
                await asyncio.sleep(0.1)
                lease.revoke(WireError(Reason.KV_NOT_FOUND, "withdrawn"))
            async with asyncio.timeout(SOON_S):
                assert await lease.until_closed() == [False]
