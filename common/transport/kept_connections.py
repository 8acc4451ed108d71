"""Connections of a reader that have done a read and wait for the next one from the same life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.base import KvSink
from common.transport.fetches import Delivery, Received
from common.transport.messages import ReadRequest

MAX_KEPT_PER_OWNER = 8
"""Connections kept to one life: as many fetches from it at once find one open."""

MAX_KEPT = 64
"""Connections kept in all; the ones that have waited longest go first."""

_Owner = tuple[WorkerLife, str]


class ReaderConnection(Protocol):
    """A connection to one owner, for one read at a time; a read that fails is the last."""

    @property
    def delivering(self) -> bool:
        """Whether any payload of the present, or newest, read has come."""
        ...

    @property
    def reusable(self) -> bool:
        """Whether the owner is still there and has nothing left to say, as far as this side knows."""
        ...

    async def read(self, sink: KvSink, request: ReadRequest) -> Received:
        """Run one read. Raises as `KvTransport.fetch` does, its timeout excepted."""
        ...

    async def abort(self) -> None:
        """Close at once; when this returns nothing writes to a sink."""
        ...


C = TypeVar("C", bound=ReaderConnection)


class KeptConnections(Generic[C]):
    """Runs reads over a kept connection where there is one, else over one that `connect` makes.

    A kept connection may have died of old age, or its owner may have been started anew: when no payload has come over
    it, a fresh one decides whether the peer is lost.
    """

    def __init__(self, path: str, connect: Callable[[KvHandle, float], Awaitable[C]]) -> None:
        """`connect` takes a handle, of whose owner it makes sure if it can, and seconds to be there; raises `WireError`
        PEER_LOST. `path` is the name of what its connections carry payloads by."""
        self.path = path
        self._connect = connect
        # Oldest first, over all owners: the order in which they go when there are too many.
        self._kept: list[tuple[_Owner, C]] = []
        self._closed = False

    async def read(self, handle: KvHandle, request: ReadRequest, sink: KvSink, connect_timeout_s: float) -> Delivery:
        """One whole read of what `handle` names."""
        owner = (handle.owner, handle.address)
        if (kept := await self._take(owner)) is not None:
            try:
                return await self._read_over(kept, owner, request, sink)
            except WireError as error:
                if kept.delivering or error.reason is not Reason.PEER_LOST:
                    raise
        fresh = await self._connect(handle, connect_timeout_s)
        return await self._read_over(fresh, owner, request, sink)

    async def forget(self, life: WorkerLife) -> None:
        """That life is over: its connections are of no use."""
        await self._drop([entry for entry in self._kept if entry[0][0] == life])

    async def close(self) -> None:
        """Close all; from now on none is kept."""
        self._closed = True
        await self._drop(list(self._kept))

    async def _read_over(self, connection: C, owner: _Owner, request: ReadRequest, sink: KvSink) -> Delivery:
        try:
            received_bytes, trailer = await connection.read(sink, request)
        except BaseException:
            await connection.abort()
            raise
        await self._keep(owner, connection)
        return Delivery(self.path, received_bytes, trailer)

    async def _keep(self, owner: _Owner, connection: C) -> None:
        if self._closed or sum(other == owner for other, _ in self._kept) >= MAX_KEPT_PER_OWNER:
            await connection.abort()
            return
        self._kept.append((owner, connection))
        await self._drop(self._kept[:-MAX_KEPT])

    async def _take(self, owner: _Owner) -> C | None:
        """The one used last, if it will do."""
        while found := next((entry for entry in reversed(self._kept) if entry[0] == owner), None):
            self._kept.remove(found)
            if found[1].reusable:
                return found[1]
            await found[1].abort()
        return None

    async def _drop(self, entries: list[tuple[_Owner, C]]) -> None:
        for entry in entries:
            # Another may have taken it, or dropped it, while the one before was being closed.
            if entry in self._kept:
                self._kept.remove(entry)
                await entry[1].abort()
