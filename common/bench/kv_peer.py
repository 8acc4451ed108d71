"""The other process of `sangam bench-kv`: `python -m common.bench.kv_peer KIND PAGES CARRIERS`.

KIND "raw" sends bytes over a blocking socket, "ucxx" over bare UCXX; "tcp", "ucx", "direct" and "auto" serve the pages
of a pool as a prefill worker does. Prints its address when it serves; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import socket
import struct
import sys
import threading
from collections.abc import Sequence

import torch

from common.clock import MonotonicClock
from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.kv_layout import KvLayout
from common.core.work import KvHandle
from common.engine.kv_pool import KvPool
from common.transport.base import KvTransport
from common.transport.factory import make_transport
from common.transport.ucx import UcxTransport
from common.transport.ucx_runtime import UcxRuntime
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging

HOST = "127.0.0.1"
OWNER = WorkerLife(WorkerId("owner"), 1)
LAYOUT = KvLayout(
    model_id="bench",
    weights_fingerprint="none",
    dtype="bfloat16",
    page_size_tokens=16,
    n_layers=32,
    n_kv_heads=4,
    head_dim=128,
)
"""A page of this layout has 1 MiB over all layers, and its K of one layer 16 KiB, as in a 7 B model with 4 KV heads."""

COMMAND = struct.Struct("<QQ")
"""What a bare sender is asked for: bytes in all, bytes a message."""

LEASE_S = 3600.0


def new_pool(pages: int) -> KvPool:
    """A pool on the CPU whose memory is really there."""
    pool = KvPool(layout=LAYOUT, num_pages=pages, device=torch.device("cpu"))
    pool.tensor.fill_(1.0)
    return pool


def touched_memory(mib: int) -> memoryview:
    """Memory for a bare row that is really there too: fresh zeros are one page of the kernel's, always in the cache."""
    memory = bytearray(b"\x01") * (mib << 20)
    return memoryview(memory)


def pool_memory(pool: KvPool) -> memoryview:
    """The pool's own memory, for a bare row: memory pages are as large as those that K/V lies in, which counts."""
    assert pool.host_bytes is not None, "a pool on the CPU"
    return pool.host_bytes


def settle_memory() -> None:
    """As a worker does before it serves: the collector need not go over what start-up left (85 ms with torch)."""
    gc.collect()
    gc.freeze()


def page_ids(first: int, pages: int, *, scattered: bool) -> tuple[int, ...]:
    """Pages side by side from `first` on, or no two of them."""
    if not scattered:
        return tuple(range(first, first + pages))
    ids = list(range(first, first + 2 * pages, 2))
    random.Random(pages).shuffle(ids)
    return tuple(ids)


def attempt_for(pages: int, *, scattered: bool, computed: bool = True) -> BlockAttempt:
    """Names one thing that the owner serves."""
    return BlockAttempt(RequestId(f"{pages}-{scattered}-{computed}"), 0, 0)


def handle_for(attempt: BlockAttempt, address: str, transport: str, pages: int) -> KvHandle:
    """Where to get it."""
    return KvHandle(
        attempt=attempt,
        owner=OWNER,
        transport=transport,
        address=address,
        layout_fingerprint=LAYOUT.fingerprint,
        canvas_tokens=pages * LAYOUT.page_size_tokens,
        pages=pages,
        lease_s=LEASE_S,
    )


def transport_of(kind: str, carriers: str) -> KvTransport:
    """The transport of a row of the table."""
    return UcxTransport(carriers=carriers) if kind == "ucx" else make_transport(kind)


class BenchOwner:
    """Serves pages for ever, and plays a prefill on request: sleeps for a time and lets readers have the next layer."""

    def __init__(self, pool_pages: int) -> None:
        self._pool = new_pool(pool_pages)
        self._serving = KvServing(
            staging=KvStaging(self._pool),
            clock=MonotonicClock(),
            life=lambda: OWNER,
            on_send_started=lambda _: None,
            on_send_ended=lambda _: None,
            on_delivered=lambda _: None,
        )

    async def run(self, kind: str, carriers: str) -> None:
        """Serve until standard input ends; a line "PAGES LAYER_S EARLY" is one prefill."""
        transport = transport_of(kind, carriers)
        print(await transport.listen(HOST, self._serving), flush=True)
        for pages, scattered in itertools.product((16, 64, 256), (False, True)):
            if 2 * pages <= self._pool.num_pages:
                self._offer(attempt_for(pages, scattered=scattered), page_ids(0, pages, scattered=scattered))
        settle_memory()
        while line := await asyncio.to_thread(sys.stdin.readline):
            pages, layer_s, early = line.split()
            await self._prefill(int(pages), float(layer_s), early == "1")
        await transport.aclose()

    def _offer(self, attempt: BlockAttempt, ids: Sequence[int]) -> None:
        deadline_s = MonotonicClock().now() + LEASE_S
        self._serving.offer(attempt, ids, len(ids) * LAYOUT.page_size_tokens, deadline_s)
        self._serving.first_revealed(attempt, b"")

    async def _prefill(self, pages: int, layer_s: float, early: bool) -> None:
        """Prints "started" when readers may come, "ended" when the last layer is computed: both take no time."""
        attempt, ids = attempt_for(pages, scattered=True, computed=False), page_ids(0, pages, scattered=True)
        if early:
            self._serving.announce(attempt, ids)
            print("started", flush=True)
        for layer in range(LAYOUT.n_layers):
            await asyncio.sleep(layer_s)
            self._serving.layer_computed([attempt], layer, None)
        self._offer(attempt, ids)
        print("ended", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        self._serving.withdraw(attempt)


def serve_raw(pages: int) -> None:
    """Send what is asked for over blocking sockets, each in a thread of its own."""
    memory = touched_memory(pages)

    def serve(peer: socket.socket) -> None:
        with peer:
            while command := peer.recv(COMMAND.size):
                total_bytes, message_bytes = COMMAND.unpack(command)
                for start in range(0, total_bytes, message_bytes):
                    peer.sendall(memory[start : min(start + message_bytes, total_bytes)])

    with socket.create_server((HOST, 0)) as server:
        print(f"{HOST}:{server.getsockname()[1]}", flush=True)
        while True:
            peer, _ = server.accept()
            threading.Thread(target=serve, args=(peer,), daemon=True).start()


async def serve_ucxx(pages: int, carriers: str) -> None:
    """Send what is asked for over bare UCXX; the first thing on the socket is the reader's address, then commands."""
    runtime = UcxRuntime(carriers=carriers)
    memory = pool_memory(new_pool(pages))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
        endpoint = await runtime.connect(address)
        mine = runtime.introduction(0).worker_address
        writer.write(len(mine).to_bytes(4, "little") + mine)
        while command := await reader.read(COMMAND.size):
            total_bytes, message_bytes = COMMAND.unpack(command)
            starts = range(0, total_bytes, message_bytes)
            sends = [
                endpoint.send(memory[start : min(start + message_bytes, total_bytes)], tag)
                for tag, start in enumerate(starts)
            ]
            for send in sends:
                await send.wait()
        await endpoint.abort([])
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    print(f"{HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    await runtime.close()


def main(kind: str, pages: int, carriers: str) -> None:
    """Be the peer of that kind."""
    if kind == "raw":
        threading.Thread(target=serve_raw, args=(pages,), daemon=True).start()
        sys.stdin.read()
    elif kind == "ucxx":
        asyncio.run(serve_ucxx(pages, carriers))
    else:
        asyncio.run(BenchOwner(pages).run(kind, carriers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
