"""In-memory owners and readers that record what a transport did with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.base import KvReadRequest
from common.transport.memory_run import MemoryRun

OWNER = WorkerLife(WorkerId("p0"), 7)
LAYOUT = "layout-1"
PATIENCE_S = 300.0
"""Longest wait for what must come: a loaded machine may stand still for long."""
AGE_S = 3600.0
"""How long ago what a double lends was computed."""


def attempt(number: int = 0) -> BlockAttempt:
    return BlockAttempt(RequestId(f"request-{number}"), 3, 1)


class Scattered:
    """One layer in memory: `data` in pieces, `gap_bytes` apart in one buffer; as writable `views` and as a `run`."""

    def __init__(self, data: bytes, piece_bytes: int, *, gap_bytes: int) -> None:
        piece_bytes = min(piece_bytes, max(len(data), 1))
        pieces = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]
        memory = memoryview(bytearray(b"\xee" * (len(pieces) * (piece_bytes + gap_bytes))))
        starts = [index * (piece_bytes + gap_bytes) for index in range(len(pieces))]
        self.views = [memory[start : start + len(piece)] for start, piece in zip(starts, pieces, strict=True)]
        for view, piece in zip(self.views, pieces, strict=True):
            view[:] = piece
        self.run = MemoryRun(memory, starts, list(map(len, pieces)))

    @property
    def content(self) -> bytes:
        return b"".join(self.views)


def random_layers(layers: int, layer_bytes: int, seed: int = 0) -> list[bytes]:
    return [random.Random(seed * 1000 + layer).randbytes(layer_bytes) for layer in range(layers)]


class MemoryLease:
    """Lends `layers_data`, cut in pieces with gaps. Set the hooks before the read starts."""

    def __init__(self, layers_data: Sequence[bytes], *, piece_bytes: int = 1 << 30, gap_bytes: int = 0) -> None:
        self._layers = [Scattered(data, piece_bytes, gap_bytes=gap_bytes) for data in layers_data]
        self._revoked: asyncio.Future[WireError] = asyncio.get_running_loop().create_future()
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.closes: list[bool] = []
        self.checks = 0
        self.views_after_close = 0
        self.reached: dict[int, asyncio.Event] = {layer: asyncio.Event() for layer in range(len(layers_data))}
        self.gates: dict[int, asyncio.Event] = {}
        self.trailer_data = b""
        self.age_s = AGE_S
        self.trailer_gate: asyncio.Event | None = None
        self.on_check: Callable[[int], None] = lambda _: None

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def window_layers(self) -> int:
        return max(1, len(self._layers))

    def check(self) -> None:
        self.checks += 1
        self.on_check(self.checks)

    @property
    def complete(self) -> bool:
        gates = [*self.gates.values(), self.trailer_gate]
        return all(gate is None or gate.is_set() for gate in gates)

    def in_runs(self) -> None:
        """Its pieces are lent as they are."""

    async def wait_layer(self, layer: int) -> None:
        self.reached[layer].set()
        if layer in self.gates:
            await self.gates[layer].wait()

    def views(self, layer: int) -> Sequence[memoryview]:
        self.views_after_close += bool(self.closes)
        return [view.toreadonly() for view in self._layers[layer].views]

    async def memory(self, layer: int) -> MemoryRun:
        await self.wait_layer(layer)
        self.views_after_close += bool(self.closes)
        return self._layers[layer].run

    def overwrite(self, layer: int) -> None:
        """The owner has given the layer's pages to another request, which writes to them."""
        for view in self._layers[layer].views:
            view[:] = b"\xdd" * len(view)

    async def trailer(self) -> bytes:
        if self.trailer_gate is not None:
            await self.trailer_gate.wait()
        return self.trailer_data

    def computed_ago_s(self) -> float:
        return self.age_s

    @property
    def revoked(self) -> asyncio.Future[WireError]:
        return self._revoked

    def revoke(self, error: WireError) -> None:
        self._revoked.set_result(error)

    async def until_closed(self) -> list[bool]:
        """How the lease was closed, once it was."""
        async with asyncio.timeout(PATIENCE_S):
            await self.closed.wait()
        return self.closes

    async def until_reached(self, layer: int) -> None:
        """Return once the transport asked for that layer."""
        async with asyncio.timeout(PATIENCE_S):
            await self.reached[layer].wait()

    def close(self, *, delivered: bool) -> None:
        self.closes.append(delivered)
        self.closed.set()


class MemoryProvider:
    """Lends prepared leases by attempt; `refusal` refuses everything."""

    def __init__(self) -> None:
        self.leases: dict[BlockAttempt, MemoryLease] = {}
        self.requests: list[KvReadRequest] = []
        self.refusal: Exception | None = None
        self.begun: asyncio.Event | None = None
        self.in_host_memory = True
        self.life = OWNER

    def lend(self, layers_data: Sequence[bytes], number: int = 0, **cut: int) -> MemoryLease:
        lease = self.leases[attempt(number)] = MemoryLease(layers_data, **cut)
        return lease

    async def until_begun(self, request: KvReadRequest) -> None:
        if self.begun is not None and request.early:
            await self.begun.wait()

    def open_read(self, request: KvReadRequest) -> MemoryLease:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        if request.attempt not in self.leases:
            raise WireError(Reason.KV_NOT_FOUND, "no such K/V here")
        lease = self.leases[request.attempt]
        lease.opened.set()
        return lease


class MemorySink:
    """Takes layers of one size into pieces with gaps; `content` joins them again."""

    def __init__(self, layers: int, layer_bytes: int, *, piece_bytes: int = 1 << 30, gap_bytes: int = 0) -> None:
        self._layers = [Scattered(bytes(layer_bytes), piece_bytes, gap_bytes=gap_bytes) for _ in range(layers)]
        self.in_host_memory = True
        self.in_long_runs = gap_bytes == 0
        self.asked: list[int] = []
        self.completed: list[tuple[int, bytes]] = []
        self._complete = [asyncio.Event() for _ in range(layers)]

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def window_layers(self) -> int:
        return max(1, len(self._layers))

    def in_runs(self) -> None:
        """Its pieces are filled as they are."""

    def views(self, layer: int) -> Sequence[memoryview]:
        self.asked.append(layer)
        return self._layers[layer].views

    def memory(self, layer: int) -> MemoryRun:
        self.asked.append(layer)
        return self._layers[layer].run

    async def complete(self, layer: int) -> None:
        self.completed.append((layer, self._layers[layer].content))
        self._complete[layer].set()

    async def until_complete(self, layer: int) -> None:
        """Return once the transport has said of that layer that it is complete."""
        async with asyncio.timeout(PATIENCE_S):
            await self._complete[layer].wait()

    async def until_full(self) -> None:
        """Return once the transport has said so of every layer."""
        await self.until_complete(self.layers - 1)

    @property
    def content(self) -> list[bytes]:
        return [layer.content for layer in self._layers]


def handle_for(address: str, number: int = 0, *, transport: str = "tcp", pages: int = 1) -> KvHandle:
    return KvHandle(
        attempt=attempt(number),
        owner=OWNER,
        transport=transport,
        address=address,
        layout_fingerprint=LAYOUT,
        canvas_tokens=pages * 16,
        pages=pages,
        lease_s=30.0,
    )
