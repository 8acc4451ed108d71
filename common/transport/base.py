"""The contract between a worker and its KV data plane, as plain bytes: no torch, no wire format.

Called by the *owner* (the worker that holds the pages), once per process life:
    `KvTransport.listen`                serve reads from `provider`
Called by the *reader* (the worker that will decode):
    `KvTransport.fetch`                 pull one canvas' K/V into a sink
    `KvTransport.close_peer`            a worker life is over: end every fetch from it
Called by either, at the end:
    `KvTransport.aclose`                stop listening, end every read and fetch
Called by the *transport* on the owner:
    `KvProvider.life`                   when a reader would have proof of whose memory it reads
    `KvProvider.until_begun`            an early reader asks: wait until there is something to read
    `KvProvider.open_read`              a reader asks; refuse it, or lend the pages
    `KvReadLease.in_runs`               perhaps, before the first layer: a carrier that takes memory in runs
    `KvReadLease.wait_layer`            once per layer, before its first byte is read
    `KvReadLease.memory`                once per layer, instead of `wait_layer` and `views`, by a transport whose reader
                                        takes the bytes out of this process' memory itself
    `KvReadLease.complete`              once per layer, after `wait_layer`: whether there is more to wait for
    `KvReadLease.views`                 once per layer, after `wait_layer`
    `KvReadLease.check`                 before every send
    `KvReadLease.trailer`               once, after the last layer
    `KvReadLease.computed_ago_s`        once, after `trailer`
    `KvReadLease.revoked`               watched beside the sends: the owner takes the pages back
    `KvReadLease.close`                 exactly once, whatever happened; nothing reads the views after it. A reader that
                                        has been told of `memory` may still look, and then believes nothing it finds
Called by the *transport* on the reader:
    `KvSink.in_runs`                    perhaps, before the first layer, as above
    `KvSink.views`                      once per layer, in order; nothing writes to them after `fetch` ends
    `KvSink.memory`                     the same in its place, of a sink that is `in_host_memory`
    `KvSink.in_long_runs`               perhaps, before the first layer: is it worth that?
    `KvSink.complete`                   once per layer, when all of it arrived and passed its checksums

A layer, here, is what is sent once it is computed: one of the model's, or several where those are small (lease and
sink of one layout and canvas cut alike). Lease and sink say how many may be on their way at once (`window_layers`):
layer n + window_layers is asked for only when layer n has left, or is complete; until then its views stay good.

Wire order: for each layer, the K bytes of all pages in order, then the V bytes of all pages in order. Every layer has
the same number of bytes. After the last layer comes the trailer: a few bytes that belong to the K/V, with the time
since the last layer was computed. A fetch succeeds only if every byte arrived and passed its checksum; then the reader
acknowledges, and the owner closes the lease with `delivered=True`. A lost acknowledgement leaves the owner with
`delivered=False`: the lease runs out, or the scheduler releases it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.core.ids import BlockAttempt, WorkerLife
from common.core.work import KvHandle, KvTransfer
from common.errors import WireError
from common.transport.memory_run import MemoryRun

MAX_TRAILER_BYTES = 60 * 1024
"""Longest trailer: what one forward reveals of a block, some 13 bytes for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvReadRequest:
    """What a reader believes the owner holds; `pages` counts KV pages of the whole canvas.

    An `early` reader may come before the prefill has begun, and then waits for it.
    """

    attempt: BlockAttempt
    owner: WorkerLife
    layout_fingerprint: str
    pages: int
    early: bool = False

    @classmethod
    def of(cls, handle: KvHandle, *, early: bool) -> KvReadRequest:
        """For the K/V that `handle` names."""
        return cls(
            attempt=handle.attempt,
            owner=handle.owner,
            layout_fingerprint=handle.layout_fingerprint,
            pages=handle.pages,
            early=early,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one successful fetch took, the trailer it brought, and the `path` that it came by: `tcp`, `ucx` ...

    `transfer.transfer_s` counts from the call of `fetch`: connecting and waiting for a prefill included. Its
    `exposed_s` counts from the moment when the last layer was computed. (That is the time since, as the owner writes it
    into the trailer: what its kernel still held back of the last layers then is not in it.)
    """

    transfer: KvTransfer
    trailer: bytes
    path: str


class KvReadLease(Protocol):
    """One open read on the owner's side."""

    @property
    def layers(self) -> int:
        """Layers to send, at least 1."""
        ...

    @property
    def window_layers(self) -> int:
        """Layers whose views may be in use at once, at least 1."""
        ...

    def check(self) -> None:
        """Raise `WireError` if the pages may no longer be sent: KV_LEASE_EXPIRED, KV_NOT_FOUND, STALE_*."""
        ...

    @property
    def complete(self) -> bool:
        """Whether every layer is computed and the trailer known, so that sending need not wait for anything more."""
        ...

    def in_runs(self) -> None:
        """This carrier takes a layer in several runs of memory as gladly as in one: copies that only join runs are not
        worth it. Changes `window_layers`."""
        ...

    async def wait_layer(self, layer: int) -> None:
        """Return once that layer's K/V is computed; may raise `WireError`."""
        ...

    def views(self, layer: int) -> Sequence[memoryview]:
        """Contiguous byte views (format "B", one dimension) of the layer, in wire order."""
        ...

    async def memory(self, layer: int) -> MemoryRun:
        """Where the layer lies, in wire order, once it is computed; only of what a provider `in_host_memory` lends. May
        raise `WireError`."""
        ...

    async def trailer(self) -> bytes:
        """What follows the last layer, at most `MAX_TRAILER_BYTES`, as soon as it is known; may raise `WireError`."""
        ...

    def computed_ago_s(self) -> float:
        """Seconds since the last layer was computed, as it is."""
        ...

    @property
    def revoked(self) -> asyncio.Future[WireError]:
        """Done, with why, as soon as the owner takes the pages back; nobody else may cancel it."""
        ...

    def close(self, *, delivered: bool) -> None:
        """End the read. `delivered`: the reader acknowledged every byte."""
        ...


class KvProvider(Protocol):
    """What an owner offers to its transport."""

    @property
    def life(self) -> WorkerLife:
        """The life that this process lives now, as its handles name it."""
        ...

    @property
    def in_host_memory(self) -> bool:
        """Whether what it lends lies in this process' own memory (`KvReadLease.memory`), not in an accelerator's."""
        ...

    async def until_begun(self, request: KvReadRequest) -> None:
        """Return when `open_read` has an answer that no prefill will change: at once, unless `request.early` and the
        prefill has yet to begin. The caller bounds the wait."""
        ...

    def open_read(self, request: KvReadRequest) -> KvReadLease:
        """Lend the pages of `request`, or raise `WireError` (STALE_INCARNATION, STALE_ATTEMPT, LAYOUT_MISMATCH,
        KV_NOT_FOUND, KV_LEASE_EXPIRED)."""
        ...


class KvSink(Protocol):
    """Where a reader wants the bytes."""

    @property
    def layers(self) -> int:
        """Layers to receive, at least 1."""
        ...

    @property
    def window_layers(self) -> int:
        """Layers whose views may be in use at once, at least 1."""
        ...

    def in_runs(self) -> None:
        """As for a lease."""
        ...

    def views(self, layer: int) -> Sequence[memoryview]:
        """Writable contiguous byte views (format "B", one dimension) of the layer, in wire order."""
        ...

    @property
    def in_host_memory(self) -> bool:
        """Whether the bytes belong into this process' own memory, and `memory` may be asked for."""
        ...

    @property
    def in_long_runs(self) -> bool:
        """Whether that memory is long runs, on average: then what costs something for each run is cheap."""
        ...

    def memory(self, layer: int) -> MemoryRun:
        """Where the layer belongs, writable, in wire order."""
        ...

    async def complete(self, layer: int) -> None:
        """The layer's views are filled and right: bring them where they belong. Also ends before `fetch` does."""
        ...


class KvTransport(Protocol):
    """One data plane of one worker process; every method belongs to the event loop that made the object."""

    @property
    def name(self) -> str:
        """What this worker offers: the name in its registration and in `KvHandle.transport`."""
        ...

    @property
    def readable(self) -> frozenset[str]:
        """What it can fetch from: names in `KvHandle.transport`. Both ends agree when the handle's is among them."""
        ...

    async def listen(self, host: str, provider: KvProvider, *, port: int = 0) -> str:
        """Serve reads on `port` of `host` (0: any free one); returns "host:port" with `host` as given. At most once."""
        ...

    async def watch(self) -> None:
        """Return when nothing is served (any more); raises what ended the listener before `aclose`, a bug."""
        ...

    async def fetch(self, *, handle: KvHandle, sink: KvSink, timeout_s: float, early: bool = False) -> Fetched:
        """Fill `sink` with the K/V that `handle` names, within `timeout_s` seconds; `early`: as it is computed.

        Raises `WireError`: the owner's refusal as it gave it; PEER_LOST when the owner cannot be reached, goes away
        or is too slow; LAYOUT_MISMATCH when both sides disagree on sizes; KV_CHECKSUM when bytes arrive damaged.
        May be cancelled. Once it has returned or raised, nothing writes to `sink`, whose content is undefined after
        a failure.
        """
        ...

    async def close_peer(self, life: WorkerLife) -> None:
        """End every fetch from that life with PEER_LOST; returns when they write no more."""
        ...

    async def aclose(self) -> None:
        """Stop listening, close every lease, end every fetch with PEER_LOST. Idempotent."""
        ...
