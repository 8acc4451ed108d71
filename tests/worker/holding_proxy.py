"""Between a reader and an owner of K/V: passes so many of the owner's frames and holds the rest."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from tests.transport.wire_peer import read_frame


class HoldingProxy:
    """A context manager that listens at `address` while it is entered.

    After `frames` frames of one connection's owner the rest waits for `release`; `holds` is set when there is such a
    rest, `over` when a connection has ended at both ends.
    """

    def __init__(self, target: str, *, frames: int) -> None:
        self._target = target
        self._frames = frames
        self._released = asyncio.Event()
        self.holds = asyncio.Event()
        self.over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.close()
        await self._server.wait_closed()

    def release(self) -> None:
        """Let everything pass that was held."""
        self._released.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_owner, to_owner = await asyncio.open_connection(*self._target.split(":"))
        try:
            await asyncio.gather(_pass(reader, to_owner), self._hold(from_owner, writer))
        finally:
            for end in (writer, to_owner):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()
            self.over.set()

    async def _hold(self, owner: asyncio.StreamReader, reader: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            for _ in range(self._frames):
                reader.write(await read_frame(owner))
            held = await owner.readexactly(1)
            self.holds.set()
            await self._released.wait()
            reader.write(held)
        await _pass(owner, reader)


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        target.write_eof()
