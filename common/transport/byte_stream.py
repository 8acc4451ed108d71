"""One non-blocking TCP socket on the event loop: scatter in, gather out, fair turns, faults as `WireError`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from common.errors import Reason, WireError
from common.transport.byte_run import MAX_VIEWS_PER_CALL, ByteRun
from common.transport.frames import HEADER_BYTES, MAX_DATA_BYTES, DataFrame, FrameDecoder, encode_control
from common.transport.messages import ControlMessage

T = TypeVar("T")

_WAKE_UP_BYTES = 512 << 10
"""Bytes worth waking up for, when as many are sure to come."""

GATHER_BYTES = 256 << 10
"""What may wait for more to be sent with it in one system call."""

FRAME_TURN_BYTES = 64 << 10
"""What a received frame counts for at least, towards the end of a turn: however small, it takes some 50 us."""

AHEAD_BYTES = 64 << 10
"""What is received beyond the present frame: the next headers and small frames come with the end of a payload."""


@contextlib.contextmanager
def peer_faults() -> Iterator[None]:
    """Turn socket errors into PEER_LOST (not the "would block" one); the operating system's text stays here."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise _peer_lost() from error


def _peer_lost() -> WireError:
    return WireError(Reason.PEER_LOST, "the KV peer is unreachable or went away")


def _without(views: list[memoryview], count_bytes: int) -> list[memoryview]:
    """`views` after their first `count_bytes`, fewer than all."""
    for index, view in enumerate(views):
        if count_bytes < len(view):
            return [view[count_bytes:], *views[index + 1 :]]
        count_bytes -= len(view)
    return []


class ByteStream:
    """Owns `sock`: whoever makes the stream closes it. At most one sender and one receiver at a time.

    `half_sent`: the newest send stopped in the middle, so nothing sensible can follow it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        # The loop is told numbers: for a socket it does not know yet, its selector formats the socket's names first.
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self.half_sent = False
        self._answer_may_come = False
        self._turn_bytes = 0
        self._low_water_bytes = 1
        self._unsent: list[memoryview] = []
        self._unsent_bytes = 0
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._ahead_start = self._ahead_end = 0

    def close(self) -> None:
        """Close the socket; what is already in the kernel still leaves."""
        self._sock.close()

    @property
    def silent(self) -> bool:
        """Whether the peer neither closed its side nor sent anything that was not received yet."""
        if self._ahead_start < self._ahead_end:
            return False
        try:
            with peer_faults():
                self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except WireError:
            return False
        return False

    async def receive(self, decoder: FrameDecoder) -> ControlMessage | DataFrame:
        """Next whole frame. Raises `WireError`: PEER_LOST at the end of the stream, or what the decoder finds.

        Cancelled in the middle of a frame it leaves a stream of which nothing more can be received.
        """
        while True:
            buffers = decoder.buffers()
            count = self._take_ahead(buffers) or await self._receive_into(buffers, decoder)
            frame = decoder.advance(count)
            self._turn_bytes += count if frame is None else max(count, FRAME_TURN_BYTES)
            if self._turn_bytes >= MAX_DATA_BYTES:
                await self._yield()
            if frame is not None:
                return frame

    async def say(
        self,
        message: ControlMessage,
        *,
        stall_timeout_s: float | None,
        check: Callable[[], None] = lambda: None,
        more: bool = False,
    ) -> None:
        """`send` the frame of `message`."""
        data = memoryview(encode_control(message))
        await self.send([data], stall_timeout_s=stall_timeout_s, check=check, more=more)

    async def send(
        self,
        buffers: Sequence[memoryview],
        *,
        stall_timeout_s: float | None,
        check: Callable[[], None] = lambda: None,
        more: bool = False,
    ) -> None:
        """Hand all of `buffers` to the kernel, calling `check` at once and before every call that takes bytes.

        With `more` they may wait until something is sent without, up to `GATHER_BYTES`, and are read only then.
        Raises what `check` raises, and PEER_LOST when the peer is gone or takes nothing for `stall_timeout_s`.
        """
        if more or self._unsent:
            self._unsent.extend(buffers)
            self._unsent_bytes += sum(map(len, buffers))
            if more and self._unsent_bytes < GATHER_BYTES:
                check()
                return
            buffers = self._unsent
            self.drop_unsent()
        run, sent_bytes, views = None, 0, buffers[:MAX_VIEWS_PER_CALL]
        total_bytes = sum(map(len, buffers))
        while sent_bytes < total_bytes:
            check()
            try:
                count = self._sock.sendmsg(views)
            except BlockingIOError:
                await self._wait_writable(stall_timeout_s)
                continue
            except OSError as error:
                raise _peer_lost() from error
            sent_bytes += count
            self.half_sent = sent_bytes < total_bytes
            self._turn_bytes += count
            if self._turn_bytes >= MAX_DATA_BYTES:
                await self._yield()
            if self.half_sent:
                run = run or ByteRun(buffers)
                views = run.slice(sent_bytes, total_bytes - sent_bytes, MAX_VIEWS_PER_CALL)

    def drop_unsent(self) -> None:
        """Forget what waits for more to be sent: none of its buffers will be read."""
        self._unsent, self._unsent_bytes = [], 0

    @contextlib.contextmanager
    def watch_input(self) -> Iterator[asyncio.Future[WireError]]:
        """A future that is done, with PEER_LOST, once the peer has sent something or closed its side: when it should
        do neither, it is leaving. After `answer_may_come` only closing counts."""
        heard: asyncio.Future[WireError] = self._loop.create_future()
        self._answer_may_come = False

        def wake() -> None:
            # Whatever it is, it stays readable: one call is enough.
            self._loop.remove_reader(self._fd)
            if not heard.done() and not (self._answer_may_come and self._has_input()):
                heard.set_result(WireError(Reason.PEER_LOST, "the KV peer went away"))

        self._set_low_water(1)
        self._loop.add_reader(self._fd, wake)
        try:
            if self._ahead_start < self._ahead_end:
                wake()
            yield heard
        finally:
            self._loop.remove_reader(self._fd)

    def answer_may_come(self) -> None:
        """From now on what the peer sends is no sign that it leaves: it may answer what is about to be sent."""
        self._answer_may_come = True

    def _has_input(self) -> bool:
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _take_ahead(self, buffers: Sequence[memoryview]) -> int:
        """Fill `buffers` with what was received ahead; returns the number of bytes."""
        start = self._ahead_start
        for buffer in buffers:
            count = min(len(buffer), self._ahead_end - self._ahead_start)
            if not count:
                break
            buffer[:count] = self._ahead[self._ahead_start : self._ahead_start + count]
            self._ahead_start += count
        return self._ahead_start - start

    async def _receive_into(self, buffers: list[memoryview], decoder: FrameDecoder) -> int:
        """Fill `buffers`; returns how many bytes those take. What came beyond them is ahead."""
        missing_bytes = sum(map(len, buffers))
        # Long frames come one after the other: beyond one of them only the next header is welcome, the rest of that
        # frame goes where it belongs.
        ahead = self._ahead[:HEADER_BYTES] if missing_bytes > AHEAD_BYTES else self._ahead
        targets, filled_bytes = [*buffers, ahead], 0
        while True:
            try:
                count = self._sock.recvmsg_into(targets[:MAX_VIEWS_PER_CALL])[0]
            except BlockingIOError:
                await self._wait_readable(decoder.due_bytes - filled_bytes)
                continue
            except OSError as error:
                raise _peer_lost() from error
            if count == 0:
                raise WireError(Reason.PEER_LOST, "the KV peer closed the connection early")
            filled_bytes += count
            if filled_bytes >= missing_bytes:
                self._ahead_start, self._ahead_end = 0, filled_bytes - missing_bytes
                return missing_bytes
            targets = _without(targets, count)

    async def _wait_readable(self, due_bytes: int) -> None:
        """One wake-up for a good part of what is due, instead of one for every segment."""
        self._set_low_water(min(due_bytes, _WAKE_UP_BYTES) if due_bytes > AHEAD_BYTES else 1)
        with self._called(self._loop.add_reader, self._loop.remove_reader, None) as ready:
            await ready

    async def _wait_writable(self, stall_timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(stall_timeout_s):
                with self._called(self._loop.add_writer, self._loop.remove_writer, None) as ready:
                    await ready
        except TimeoutError:
            raise WireError(Reason.PEER_LOST, f"the KV peer took no bytes for {stall_timeout_s} s") from None

    def _set_low_water(self, low_water_bytes: int) -> None:
        if low_water_bytes != self._low_water_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
            self._low_water_bytes = low_water_bytes

    async def _yield(self) -> None:
        """A fast peer never makes anyone wait: others run after each `MAX_DATA_BYTES`."""
        self._turn_bytes = 0
        await asyncio.sleep(0)

    @contextlib.contextmanager
    def _called(
        self, add: Callable[..., None], remove: Callable[[int], bool], result: T
    ) -> Iterator[asyncio.Future[T]]:
        """A future that is done, with `result`, once the loop calls what `add` has told it."""
        called: asyncio.Future[T] = self._loop.create_future()

        def wake() -> None:
            if not called.done():
                called.set_result(result)

        add(self._fd, wake)
        try:
            yield called
        finally:
            remove(self._fd)
