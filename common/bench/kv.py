"""How fast K/V moves between two processes of this machine, side by side with what the machine can do without Sangam.

The rows of a path and the bare one that it is compared with take turns, round by round, so that whatever else the
machine does falls on all of them; a row's figure is its best round. The processes of other paths are not there
meanwhile. The transports move the pages of a pool into the pages of another, with everything that a worker does on the
way: lease checks, framing, checksums, staging. The bare rows move as many bytes and do no more; bare UCXX moves
them from pool memory to pool memory, in one message.
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

from common.bench.kv_peer import (
    COMMAND,
    attempt_for,
    handle_for,
    new_pool,
    page_ids,
    pool_memory,
    settle_memory,
    touched_memory,
    transport_of,
)
from common.cli.table import render_table
from common.core.ids import BlockAttempt
from common.engine.kv_pool import KvPool
from common.transport.base import Fetched
from common.transport.ucx_runtime import UcxRuntime, ucx_installed
from common.worker.kv_staging import KvStaging
from common.worker.pool_sink import PoolSink

MIB = 1 << 20
SIZES_MIB = (16, 64, 256)
RAW = "raw blocking socket"
PATHS = {
    "tcp": ("tcp", "", RAW),
    "ucx over tcp": ("ucx", "tcp,self", "bare UCXX over tcp"),
    "ucx over shm": ("ucx", "sm,self", "bare UCXX over shm"),
    "direct": ("direct", "", RAW),
    "auto": ("auto", "", RAW),
}
"""Each path of the transports: kind, UCX's carriers, and the bare row that it is compared with."""

TABLES = ("rates", "parallel", "exposed")
TIMEOUT_S = 60.0
EXPOSED_PAGES = 64
EXPOSED_HEADER = ("transport", "prefill ms", "transfer ms", "exposed ms, no overlap", "exposed ms, overlap", "hidden %")

WARM_UP_ROUNDS = 2
"""Rounds of every row that do not count: connections are made in them, memory is touched, socket buffers grow."""


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
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES_MIB, choices=SIZES_MIB, metavar="MIB", help="16, 64, 256 (all)"
    )
    parser.add_argument(
        "--paths", nargs="+", default=tuple(PATHS), choices=tuple(PATHS), metavar="PATH", help="which paths (all)"
    )
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES, help="which tables (all)")


def run(args: argparse.Namespace) -> int:
    """Measure and print the tables."""
    asyncio.run(_bench(args.rounds, sorted(set(args.sizes)), args.paths, args.tables))
    return 0


async def _bench(rounds: int, sizes_mib: Sequence[int], paths: Sequence[str], tables: Sequence[str]) -> None:
    pool_pages = 2 * max(*sizes_mib, EXPOSED_PAGES)
    pool = new_pool(pool_pages)
    print(
        f"Best of {rounds} rounds; each path is measured beside what it is compared with, and no other is there then."
    )
    rates: list[list[str]] = []
    parallel: list[list[str]] = []
    exposed: list[list[str]] = []
    for path in PATHS:
        if path not in paths or (path.startswith("ucx") and not ucx_installed()):
            continue
        async with contextlib.AsyncExitStack() as stack:
            lab = _Lab(stack, pool, pool_pages)
            rows = await lab.rows(path)
            settle_memory()
            if "rates" in tables:
                await _measure(rows, sizes_mib, rounds)
                rates += _lines(rows, sizes_mib)
            if "parallel" in tables:
                parallel.append([path, *await lab.parallel(rounds)])
            if "exposed" in tables:
                exposed.append([path, *await lab.exposed(rounds)])
    if rates:
        print("\nGB/s\n")
        shares = [f"% at {size}" for size in sizes_mib]
        print(render_table(["path", *(f"{size} MiB" for size in sizes_mib), "compared with", *shares], rates))
    if parallel:
        print("\nEight fetches of 64 MiB at once, against one after the other (GB/s in all)\n")
        print(render_table(("transport", "one", "eight", "ratio"), parallel))
    if exposed:
        print("\nkv_transfer_exposed_s: not hidden by a prefill of 32 layers (64 MiB, scattered; medians)\n")
        print(render_table(EXPOSED_HEADER, exposed))


async def _measure(rows: Sequence[Row], sizes_mib: Sequence[int], rounds: int) -> None:
    for number in range(WARM_UP_ROUNDS + rounds):
        for size_mib in sizes_mib:
            for row in rows:
                seconds = await row.move(size_mib)
                if number >= WARM_UP_ROUNDS:
                    row.seconds.setdefault(size_mib, []).append(seconds)


def _lines(rows: Sequence[Row], sizes_mib: Sequence[int]) -> list[list[str]]:
    """Rates, and each row's share of the row it is compared with, in percent."""
    by_name = {row.name: row for row in rows}
    lines = []
    for row in rows:
        rates = [f"{row.rate(size):.2f}" for size in sizes_mib]
        shares = [
            f"{100 * row.rate(size) / by_name[row.base].rate(size):.0f}" if row.base else "-" for size in sizes_mib
        ]
        lines.append([row.name, *rates, row.base or "-", *shares])
    return lines


class _Lab:
    """The peers, and this process' ends of them; everything ends with `stack`."""

    def __init__(self, stack: contextlib.AsyncExitStack, pool: KvPool, pool_pages: int) -> None:
        self._stack = stack
        self._pool = pool
        self._pool_pages = pool_pages
        self._staging = KvStaging(pool)

    async def rows(self, path: str) -> list[Row]:
        """The rows of that path, after the one that it is compared with."""
        self._kind, carriers, base = PATHS[path]
        if base == RAW:
            peer = await self._peer("raw")
            rows = [
                Row(name=base, move=self._raw(peer.address)),
                Row(name="memcpy through shared memory", move=_shared_memory(self._pool_pages)),
            ]
        else:
            peer = await self._peer("ucxx", carriers)
            rows = [Row(name=base, move=await self._bare_ucxx(peer.address, carriers))]
        self._owner = await self._peer(self._kind, carriers or "-")
        self._reader = transport_of(self._kind, carriers)
        self._stack.push_async_callback(self._reader.aclose)
        return [
            *rows,
            Row(name=f"{path}, contiguous", move=lambda size: self._fetch(size, scattered=False), base=base),
            Row(name=f"{path}, scattered", move=lambda size: self._fetch(size, scattered=True), base=base),
        ]

    async def parallel(self, rounds: int) -> list[str]:
        """Eight fetches at once share what one gets."""
        one, eight = [], []
        for _ in range(rounds):
            one.append(await self._fetch(64, scattered=False))
            started = time.perf_counter()
            await asyncio.gather(*(self._fetch(64, scattered=False) for _ in range(8)))
            eight.append(time.perf_counter() - started)
        alone, together = 64 * MIB / min(one) / 1e9, 8 * 64 * MIB / min(eight) / 1e9
        return [f"{alone:.2f}", f"{together:.2f}", f"{together / alone:.2f}"]

    async def exposed(self, rounds: int) -> list[str]:
        """What a prefill does not hide of the transfer of its K/V, without overlap (fetched afterwards) and with."""
        transfer_s = min([await self._fetch(EXPOSED_PAGES, scattered=True) for _ in range(3)])
        layer_s = 1.5 * transfer_s / 32
        after, early = [], []
        for _ in range(rounds):
            after.append(await self._exposed_s(layer_s, early=False))
            early.append(await self._exposed_s(layer_s, early=True))
        exposed_s, early_s = statistics.median(after), statistics.median(early)
        cells = (32 * layer_s, transfer_s, exposed_s, early_s)
        return [*(f"{1000 * cell:.1f}" for cell in cells), f"{100 * (1 - early_s / transfer_s):.0f}"]

    async def _exposed_s(self, layer_s: float, *, early: bool) -> float:
        self._owner.say(f"{EXPOSED_PAGES} {layer_s} {int(early)}")
        if early:
            assert await self._owner.hear() == "started"
            fetching = asyncio.create_task(self._fetch_computed())
            assert await self._owner.hear() == "ended"
        else:
            assert await self._owner.hear() == "ended"
            fetching = asyncio.create_task(self._fetch_computed())
        exposed_s = await fetching
        self._owner.say("")
        return exposed_s

    async def _fetch_computed(self) -> float:
        """Fetch what the peer's prefill computes; returns `KvTransfer.exposed_s`."""
        fetched = await self._fetch_of(attempt_for(EXPOSED_PAGES, scattered=True, computed=False), EXPOSED_PAGES, True)
        return fetched.transfer.exposed_s

    async def _fetch(self, pages: int, *, scattered: bool) -> float:
        started = time.perf_counter()
        await self._fetch_of(attempt_for(pages, scattered=scattered), pages, scattered)
        return time.perf_counter() - started

    async def _fetch_of(self, attempt: BlockAttempt, pages: int, scattered: bool) -> Fetched:
        handle = handle_for(attempt, self._owner.address, self._reader.name, pages)
        with PoolSink(self._staging, page_ids(0, pages, scattered=scattered)) as sink:
            return await self._reader.fetch(handle=handle, sink=sink, timeout_s=TIMEOUT_S)

    def _raw(self, address: str) -> Callable[[int], Awaitable[float]]:
        """The better of two message sizes, over a connection of its own each, kept like those of the transports."""
        memory = touched_memory(self._pool_pages)
        host, _, port = address.rpartition(":")
        peers = {
            size: self._stack.enter_context(socket.create_connection((host, int(port)))) for size in (MIB, 4 * MIB)
        }

        def receive(total_bytes: int, message_bytes: int) -> float:
            started = time.perf_counter()
            peers[message_bytes].sendall(COMMAND.pack(total_bytes, message_bytes))
            received = 0
            while received < total_bytes:
                end = min(received + message_bytes, total_bytes)
                received += peers[message_bytes].recv_into(memory[received:end])
            return time.perf_counter() - started

        async def move(size_mib: int) -> float:
            """In a thread, for it blocks."""
            return min([await asyncio.to_thread(receive, size_mib * MIB, size) for size in peers])

        return move

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
        memory = pool_memory(self._pool)

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


def _shared_memory(pages: int) -> Callable[[int], Awaitable[float]]:
    """One copy into a shared mapping and one out of it, one after the other, as a sender and a receiver would."""
    shared = memoryview(mmap.mmap(-1, pages * MIB))
    source, target = touched_memory(pages), touched_memory(pages)

    async def move(size_mib: int) -> float:
        started = time.perf_counter()
        for start in range(0, size_mib * MIB, MIB):
            shared[start : start + MIB] = source[start : start + MIB]
            target[start : start + MIB] = shared[start : start + MIB]
        return time.perf_counter() - started

    return move
