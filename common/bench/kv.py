"""How fast K/V moves between two processes of this machine, side by side with what the machine can do without Sangam.

Every row is measured in turn, round by round, so that whatever else the machine does falls on all of them; a row's
figure is its best round. The transports move the pages of a pool into the pages of another, with everything that a
worker does on the way: lease checks, framing, checksums, staging. The bare rows move as many bytes and do no more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import mmap
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from common.bench.kv_peer import COMMAND, HOST, attempt_for, handle_for, make_transport, new_pool, page_ids
from common.cli.table import render_table
from common.engine.kv_pool import KvPool
from common.transport.socket_transport import SocketTransport
from common.transport.ucx_runtime import UcxRuntime, ucx_installed
from common.worker.kv_staging import KvStaging
from common.worker.pool_sink import PoolSink

MIB = 1 << 20
SIZES_MIB = (16, 64, 256)
CARRIERS = {"over tcp": "tcp,self", "over shm": "sm,self"}
TIMEOUT_S = 60.0
EXPOSED_PAGES = 64


@dataclass(slots=True, kw_only=True)
class Row:
    """One way to move bytes; `move(MiB)` returns the seconds it took. `base`: the row that it is compared with."""

    name: str
    move: Callable[[int], Awaitable[float]]
    base: str | None = None
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def rate(self, size_mib: int) -> float:
        """Best round, in GB/s."""
        return size_mib * MIB / min(self.seconds[size_mib]) / 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam bench-kv`."""
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds over all rows (default %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_MIB, choices=SIZES_MIB, metavar="MIB")


def run(args: argparse.Namespace) -> int:
    """Measure and print the tables."""
    asyncio.run(_bench(args.rounds, tuple(args.sizes)))
    return 0


async def _bench(rounds: int, sizes_mib: Sequence[int]) -> None:
    pool_pages = 2 * max(*sizes_mib, EXPOSED_PAGES)
    async with contextlib.AsyncExitStack() as stack:
        lab = _Lab(stack, new_pool(pool_pages), pool_pages)
        rows = await lab.rows()
        for number in range(rounds + 1):
            for size_mib in sizes_mib:
                for row in rows:
                    seconds = await row.move(size_mib)
                    if number:  # the first round warms up connections and memory
                        row.seconds.setdefault(size_mib, []).append(seconds)
        print("GB/s, best of", rounds, "rounds\n")
        print(render_table(*_table(rows, sizes_mib)))
        print("\nEight fetches of 64 MiB at once, against one after the other (GB/s in all)\n")
        print(render_table(("transport", "one", "eight", "ratio"), await lab.parallel(rounds)))
        print("\nkv_transfer_exposed_s: not hidden by a prefill of 32 layers (64 MiB, scattered; medians)\n")
        header = (
            "transport",
            "prefill ms",
            "transfer ms",
            "exposed ms, no overlap",
            "exposed ms, overlap",
            "hidden %",
        )
        print(render_table(header, await lab.exposed(rounds)))


def _table(rows: Sequence[Row], sizes_mib: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """Rates, and each row's share of the row it is compared with, in percent."""
    by_name = {row.name: row for row in rows}
    header = ["path", *(f"{size} MiB" for size in sizes_mib), "compared with", *(f"% at {size}" for size in sizes_mib)]
    lines = []
    for row in rows:
        rates = [f"{row.rate(size):.2f}" for size in sizes_mib]
        shares = [
            f"{100 * row.rate(size) / by_name[row.base].rate(size):.0f}" if row.base else "-" for size in sizes_mib
        ]
        lines.append([row.name, *rates, row.base or "-", *shares])
    return header, lines


class _Lab:
    """The peers, and this process' ends of them; everything ends with `stack`."""

    def __init__(self, stack: contextlib.AsyncExitStack, pool: KvPool, pool_pages: int) -> None:
        self._stack = stack
        self._pool = pool
        self._pool_pages = pool_pages
        self._staging = KvStaging(pool)
        self._owners: dict[str, tuple[SocketTransport, str, _Peer]] = {}

    async def rows(self) -> list[Row]:
        """Every row, bare ones first."""
        raw = await self._peer("raw")
        rows = [
            Row(name="raw blocking socket", move=_blocking(raw.address)),
            Row(name="memcpy through shared memory", move=_shared_memory(self._pool_pages)),
        ]
        rows += await self._transport_rows("tcp", "tcp", "", "raw blocking socket")
        if ucx_installed():
            for label, carriers in CARRIERS.items():
                bare = f"bare UCXX {label}"
                peer = await self._peer("ucxx", carriers)
                rows.append(Row(name=bare, move=await self._bare_ucxx(peer.address, carriers)))
                rows += await self._transport_rows(f"ucx {label}", "ucx", carriers, bare)
            rows += await self._transport_rows("ucx, as auto picks", "ucx", "all", "raw blocking socket")
        return rows

    async def parallel(self, rounds: int) -> list[list[str]]:
        """Eight fetches at once share what one gets."""
        lines = []
        for name in self._owners:
            one, eight = [], []
            for _ in range(rounds):
                one.append(await self._fetch(name, 64, scattered=False))
                started = time.perf_counter()
                await asyncio.gather(*(self._fetch(name, 64, scattered=False) for _ in range(8)))
                eight.append(time.perf_counter() - started)
            alone, together = 64 * MIB / min(one) / 1e9, 8 * 64 * MIB / min(eight) / 1e9
            lines.append([name, f"{alone:.2f}", f"{together:.2f}", f"{together / alone:.2f}"])
        return lines

    async def exposed(self, rounds: int) -> list[list[str]]:
        """What a prefill does not hide of the transfer of its K/V, without overlap (fetched afterwards) and with."""
        lines = []
        for name in self._owners:
            transfer_s = min([await self._fetch(name, EXPOSED_PAGES, scattered=True) for _ in range(3)])
            layer_s = 1.5 * transfer_s / 32
            after, early = [], []
            for _ in range(rounds):
                after.append(await self._exposed_s(name, layer_s, early=False))
                early.append(await self._exposed_s(name, layer_s, early=True))
            exposed_s, early_s = statistics.median(after), statistics.median(early)
            cells = (32 * layer_s, transfer_s, exposed_s, early_s)
            hidden = 100 * (1 - early_s / transfer_s)
            lines.append([name, *(f"{1000 * cell:.1f}" for cell in cells), f"{hidden:.0f}"])
        return lines

    async def _exposed_s(self, name: str, layer_s: float, *, early: bool) -> float:
        reader, transport, peer = self._owners[name]
        peer.say(f"{EXPOSED_PAGES} {layer_s} {int(early)}")
        if early:
            assert await peer.hear() == "started"
            fetching = asyncio.create_task(self._fetch_computed(reader, transport, peer))
            assert await peer.hear() == "ended"
        else:
            assert await peer.hear() == "ended"
            fetching = asyncio.create_task(self._fetch_computed(reader, transport, peer))
        exposed_s = await fetching
        peer.say("")
        return exposed_s

    async def _fetch_computed(self, reader: SocketTransport, transport: str, peer: _Peer) -> float:
        """Fetch what the peer's prefill computes; returns `KvTransfer.exposed_s`."""
        attempt = attempt_for(EXPOSED_PAGES, scattered=True, computed=False)
        handle = handle_for(attempt, peer.address, transport, EXPOSED_PAGES)
        with PoolSink(self._staging, page_ids(0, EXPOSED_PAGES, scattered=True)) as sink:
            fetched = await reader.fetch(handle=handle, sink=sink, timeout_s=TIMEOUT_S)
        return fetched.transfer.exposed_s

    async def _transport_rows(self, name: str, kind: str, carriers: str, base: str) -> list[Row]:
        peer = await self._peer(kind, carriers or "-")
        reader = make_transport(kind, carriers)
        self._stack.push_async_callback(reader.aclose)
        self._owners[name] = (reader, kind, peer)
        return [
            Row(
                name=f"{name}, contiguous",
                move=lambda size: self._fetch(name, size, scattered=False),
                base=base,
            ),
            Row(name=f"{name}, scattered", move=lambda size: self._fetch(name, size, scattered=True), base=base),
        ]

    async def _fetch(self, name: str, pages: int, *, scattered: bool) -> float:
        reader, transport, peer = self._owners[name]
        handle = handle_for(attempt_for(pages, scattered=scattered), peer.address, transport, pages)
        with PoolSink(self._staging, page_ids(0, pages, scattered=scattered)) as sink:
            started = time.perf_counter()
            await reader.fetch(handle=handle, sink=sink, timeout_s=TIMEOUT_S)
            return time.perf_counter() - started

    async def _bare_ucxx(self, address: str, carriers: str) -> Callable[[int], Awaitable[float]]:
        """The whole size as one message: what UCXX does best."""
        runtime = UcxRuntime(carriers=carriers)
        self._stack.push_async_callback(runtime.close)
        reader, writer = await asyncio.open_connection(*address.split(":"))
        mine = runtime.introduction(0).worker_address
        writer.write(len(mine).to_bytes(4, "little") + mine)
        theirs = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
        endpoint = await runtime.connect(theirs)
        self._stack.push_async_callback(endpoint.abort, [])
        self._stack.callback(writer.close)
        memory = memoryview(bytearray(self._pool_pages * MIB))

        async def move(size_mib: int) -> float:
            started = time.perf_counter()
            writer.write(COMMAND.pack(size_mib * MIB, size_mib * MIB))
            await endpoint.receive(memory[: size_mib * MIB], 0).wait()
            return time.perf_counter() - started

        return move

    async def _peer(self, kind: str, carriers: str = "-") -> _Peer:
        return await self._stack.enter_async_context(_peer(kind, self._pool_pages, carriers))


class _Peer:
    """A peer process that serves at `address`."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    def say(self, line: str) -> None:
        """Write one line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def hear(self) -> str:
        """The next line of its standard output."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


@contextlib.asynccontextmanager
async def _peer(kind: str, pages: int, carriers: str) -> AsyncIterator[_Peer]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "common.bench.kv_peer", kind, str(pages), carriers),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield _Peer(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5.0)
        except TimeoutError:
            process.kill()
            await process.wait()


def _blocking(address: str) -> Callable[[int], Awaitable[float]]:
    port = int(address.rpartition(":")[2])
    memory = memoryview(bytearray(max(SIZES_MIB) * MIB))

    def receive(total_bytes: int, message_bytes: int) -> float:
        with socket.create_connection((HOST, port)) as peer:
            started = time.perf_counter()
            peer.sendall(COMMAND.pack(total_bytes, message_bytes))
            received = 0
            while received < total_bytes:
                received += peer.recv_into(memory[received : min(received + message_bytes, total_bytes)])
            return time.perf_counter() - started

    async def move(size_mib: int) -> float:
        """The better of two message sizes; in a thread, for it blocks."""
        return min([await asyncio.to_thread(receive, size_mib * MIB, size) for size in (MIB, 4 * MIB)])

    return move


def _shared_memory(pages: int) -> Callable[[int], Awaitable[float]]:
    """One copy into a shared mapping and one out of it, one after the other, as a sender and a receiver would."""
    shared = memoryview(mmap.mmap(-1, pages * MIB))
    source, target = memoryview(bytearray(pages * MIB)), memoryview(bytearray(pages * MIB))

    async def move(size_mib: int) -> float:
        started = time.perf_counter()
        for start in range(0, size_mib * MIB, MIB):
            shared[start : start + MIB] = source[start : start + MIB]
            target[start : start + MIB] = shared[start : start + MIB]
        return time.perf_counter() - started

    return move
