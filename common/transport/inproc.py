"""KV transport within one process: the test double, held to the same contract as the real ones.

Owners and readers meet on an `InprocNetwork`; a read copies from lease to sink in the reader's task.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.racing import CutShort
from common.transport.base import Fetched, KvProvider, KvReadLease, KvReadRequest, KvSink
from common.transport.byte_run import ByteRun
from common.transport.fetches import Delivery, FetchTable
from common.transport.frames import MAX_DATA_BYTES
from common.transport.messages import Trailer
from common.transport.sizes import agreed_first_layer

_log = logging.getLogger(__name__)


class _Listener:
    """One owner: its provider, a future that is done when it stops serving, and one per read, done when it ended."""

    def __init__(self, provider: KvProvider) -> None:
        self.provider = provider
        self.closed: asyncio.Future[WireError] = asyncio.get_running_loop().create_future()
        self.reads: set[asyncio.Future[None]] = set()


class InprocNetwork:
    """Addresses of the owners that listen; transports that share one can reach each other."""

    def __init__(self) -> None:
        self._listeners: dict[str, _Listener] = {}
        self._ports = itertools.count(1)

    def add(self, host: str, provider: KvProvider) -> tuple[str, _Listener]:
        """A fresh address at `host`, and what serves it."""
        address, listener = f"{host}:{next(self._ports)}", _Listener(provider)
        self._listeners[address] = listener
        return address, listener

    def remove(self, address: str) -> None:
        """Nobody listens there any more."""
        self._listeners.pop(address, None)

    def find(self, address: str) -> _Listener:
        """Who listens at `address`; raises `WireError` PEER_LOST when nobody does."""
        listener = self._listeners.get(address)
        if listener is None:
            raise WireError(Reason.PEER_LOST, "the KV peer is unreachable or went away")
        return listener


class InprocTransport:
    """`KvTransport` over an `InprocNetwork`."""

    name = "inproc"
    readable = frozenset({"inproc"})

    def __init__(self, network: InprocNetwork) -> None:
        self._network = network
        self._fetches = FetchTable()
        self._address = ""
        self._listener: _Listener | None = None

    async def listen(self, host: str, provider: KvProvider, *, port: int = 0) -> str:
        """See `KvTransport.listen`; the network gives out the ports, so `port` must be 0."""
        assert self._listener is None and not port, "one listener per transport, at a port of the network's choice"
        self._address, self._listener = self._network.add(host, provider)
        return self._address

    async def watch(self) -> None:
        """See `KvTransport.watch`; nothing runs here that could fail."""
        if self._listener is not None:
            await asyncio.shield(self._listener.closed)

    async def fetch(self, *, handle: KvHandle, sink: KvSink, timeout_s: float, early: bool = False) -> Fetched:
        """See `KvTransport.fetch`."""
        read = self._read(handle.address, KvReadRequest.of(handle, early=early), sink)
        return await self._fetches.run(handle.owner, read, timeout_s)

    async def close_peer(self, life: WorkerLife) -> None:
        """See `KvTransport.close_peer`."""
        await self._fetches.end(life, f"worker {life.worker_id} is lost")

    async def aclose(self) -> None:
        """See `KvTransport.aclose`."""
        if self._listener is not None:
            self._network.remove(self._address)
            if not self._listener.closed.done():
                self._listener.closed.set_result(WireError(Reason.PEER_LOST, "the KV peer went away"))
            if self._listener.reads:
                await asyncio.wait(self._listener.reads)
        await self._fetches.close()

    async def _read(self, address: str, request: KvReadRequest, sink: KvSink) -> Delivery:
        listener = self._network.find(address)
        try:
            return await _read_from(listener, request, sink)
        except WireError:
            raise
        except Exception:
            # As over a socket: a bug in provider, lease or sink, of whatever type, is logged and comes as INTERNAL.
            _log.exception("KV read of %s failed", request.attempt)
            raise WireError(Reason.INTERNAL, "internal error") from None


async def _read_from(listener: _Listener, request: KvReadRequest, sink: KvSink) -> Delivery:
    async with CutShort(listener.closed):
        await listener.provider.until_begun(request)
    lease = listener.provider.open_read(request)
    delivered = False
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    listener.reads.add(ended)
    try:
        async with CutShort(lease.revoked, listener.closed):
            received = await _copy(lease, sink)
        delivered = True
    finally:
        lease.close(delivered=delivered)
        listener.reads.remove(ended)
        ended.set_result(None)
    return received


async def _copy(lease: KvReadLease, sink: KvSink) -> Delivery:
    if lease.layers < 1:
        raise WireError(Reason.LAYOUT_MISMATCH, "there is no K/V to read")
    await lease.wait_layer(0)
    source = ByteRun(lease.views(0))
    target = agreed_first_layer(sink, layers=lease.layers, layer_bytes=source.size_bytes)
    await _copy_layer(lease, source, target)
    await sink.complete(0)
    for layer in range(1, lease.layers):
        await lease.wait_layer(layer)
        await _copy_layer(lease, ByteRun(lease.views(layer)), ByteRun(sink.views(layer)))
        await sink.complete(layer)
    data = await lease.trailer()
    lease.check()
    trailer = Trailer(data=data, computed_ago_s=lease.computed_ago_s())
    return Delivery(InprocTransport.name, source.size_bytes * lease.layers, trailer)


async def _copy_layer(lease: KvReadLease, source: ByteRun, target: ByteRun) -> None:
    assert source.size_bytes == target.size_bytes, "every layer has the same size"
    for offset in range(0, source.size_bytes, MAX_DATA_BYTES):
        length = min(MAX_DATA_BYTES, source.size_bytes - offset)
        lease.check()
        target.write(offset, b"".join(source.slice(offset, length)))
        await asyncio.sleep(0)
