"""A wire between two processes that can be cut: a TCP proxy on loopback that goes silent, and later whole again.

Cut means silence: connections stay open, new ones are taken and hear nothing, not even the end of the other side is
told. What was on its way arrives when the wire is whole again, as after a real outage of the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

_PIECE_BYTES = 1 << 16


class Wire:
    """Carries connections from `address` to wherever `target` says (host:port) when one is made."""

    def __init__(self, host: str, target: Callable[[], str]) -> None:
        """Listens on a free port of `host` (any 127.x.y.z is this machine) once `run` runs; the port is known now."""
        self._target = target
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self._whole = asyncio.Event()
        self._whole.set()

    @property
    def address(self) -> str:
        """host:port of this end."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """From now on, silence."""
        self._whole.clear()

    def mend(self) -> None:
        """Whole again."""
        self._whole.set()

    async def run(self) -> None:
        """Carry until cancelled; then every connection ends."""
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as connections:
                while True:
                    near, _ = await loop.sock_accept(self._listener)
                    connections.create_task(self._connect(near))

    async def _connect(self, near: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with near, socket.socket() as far, contextlib.suppress(OSError):
            far.setblocking(False)
            await self._whole.wait()
            host, _, port = self._target().rpartition(":")
            await loop.sock_connect(far, (host, int(port)))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._carry(near, far))
                directions.create_task(self._carry(far, near))

    async def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        """One direction, up to the end of what `source` says, which is passed on too."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while piece := await loop.sock_recv(source, _PIECE_BYTES):
                await self._whole.wait()
                await loop.sock_sendall(sink, piece)
        await self._whole.wait()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
