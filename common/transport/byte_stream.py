"""One non-blocking TCP socket on the event loop: scatter in, gather out, fair turns, faults as `WireError`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from common.errors import Reason, WireError
from common.transport.byte_run import MAX_VIEWS_PER_CALL, ByteRun
from common.transport.frames import MAX_DATA_BYTES, DataFrame, FrameDecoder
from common.transport.messages import ControlMessage

_WAKE_UP_BYTES = 512 << 10
"""Bytes worth waking up for, in the middle of a payload."""


@contextlib.contextmanager
def peer_faults() -> Iterator[None]:
    """Turn socket errors into PEER_LOST (not the "would block" one); the operating system's text stays here."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise WireError(Reason.PEER_LOST, "the KV peer is unreachable or went away") from error


class ByteStream:
    """Owns `sock`: whoever makes the stream closes it. At most one sender and one receiver at a time.

    `half_sent`: the newest send stopped in the middle, so nothing sensible can follow it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.half_sent = False
        self._received_since_turn_bytes = 0

    def close(self) -> None:
        """Close the socket; what is already in the kernel still leaves."""
        self._sock.close()

    @property
    def silent(self) -> bool:
        """Whether the peer neither closed its side nor sent anything that was not received yet."""
        try:
            with peer_faults():
                self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except WireError:
            return False
        return False

    async def receive(self, decoder: FrameDecoder) -> ControlMessage | DataFrame:
        """Next whole frame. Raises `WireError`: PEER_LOST at the end of the stream, or what the decoder finds."""
        while True:
            count = await self._receive_into(decoder.buffers())
            frame = decoder.advance(count)
            await self._maybe_yield(count)
            if frame is not None:
                return frame

    async def send(
        self, buffers: Sequence[memoryview], *, stall_timeout_s: float | None, check: Callable[[], None] = lambda: None
    ) -> None:
        """Hand all of `buffers` to the kernel, calling `check` before every call that takes bytes.

        Raises what `check` raises, and PEER_LOST when the peer is gone or takes nothing for `stall_timeout_s`.
        """
        run, sent = ByteRun(buffers), 0
        while sent < run.size_bytes:
            check()
            try:
                with peer_faults():
                    sent += self._sock.sendmsg(run.slice(sent, run.size_bytes - sent, MAX_VIEWS_PER_CALL))
                self.half_sent = sent < run.size_bytes
            except BlockingIOError:
                await self._wait_writable(stall_timeout_s)

    async def wait_readable(self) -> None:
        """Until the peer sent something or closed its side."""
        async with self._waiter(self._loop.add_reader, self._loop.remove_reader) as ready:
            await ready

    async def _wait_writable(self, stall_timeout_s: float | None) -> None:
        try:
            async with (
                asyncio.timeout(stall_timeout_s),
                self._waiter(self._loop.add_writer, self._loop.remove_writer) as ready,
            ):
                await ready
        except TimeoutError:
            raise WireError(Reason.PEER_LOST, f"the KV peer took no bytes for {stall_timeout_s} s") from None

    async def _receive_into(self, buffers: list[memoryview]) -> int:
        while True:
            try:
                with peer_faults():
                    count = self._sock.recvmsg_into(buffers)[0]
            except BlockingIOError:
                # One wake-up for a good part of what is missing, instead of one for every segment.
                missing_bytes = sum(map(len, buffers))
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(missing_bytes, _WAKE_UP_BYTES))
                await self.wait_readable()
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                continue
            if count == 0:
                raise WireError(Reason.PEER_LOST, "the KV peer closed the connection early")
            return count

    async def _maybe_yield(self, count_bytes: int) -> None:
        """A fast peer always has more bytes ready: let others run after each data frame's worth."""
        self._received_since_turn_bytes += count_bytes
        if self._received_since_turn_bytes >= MAX_DATA_BYTES:
            self._received_since_turn_bytes = 0
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _waiter(
        self, add: Callable[..., None], remove: Callable[[socket.socket], bool]
    ) -> AsyncIterator[asyncio.Future[None]]:
        ready: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        add(self._sock, wake)
        try:
            yield ready
        finally:
            remove(self._sock)
