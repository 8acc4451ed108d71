"""The owner's side of a read, with a carrier that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from common.transport.byte_run import ByteRun
from common.transport.byte_stream import ByteStream
from common.transport.direct import DirectTransport
from common.transport.frames import DataFrame, FrameDecoder, FrameKind, encode_control
from common.transport.messages import Ack, Trailer
from common.transport.owner_session import OwnerLimits, OwnerSession, computed_run
from common.transport.socket_transport import SocketTransport
from common.transport.tcp import TcpTransport
from tests.transport.doubles import MemoryProvider, random_layers
from tests.transport.wire_peer import raw_reader, request_frame

LIMITS = OwnerLimits(handshake_timeout_s=20.0, stall_timeout_s=20.0, read_timeout_s=60.0)
TURNS = 10


class LateCarrier:
    """`PayloadSender` that takes many turns of the loop to hear that the trailer has left: `peer` acts meanwhile."""

    inline = False

    def __init__(self, stream: ByteStream, peer: Callable[[], None]) -> None:
        self._stream = stream
        self._peer = peer
        self.aborted = False

    def pieces(self, layer: int, layer_bytes: int) -> Iterator[DataFrame]:
        yield DataFrame(layer=layer, offset_bytes=0, length_bytes=layer_bytes)

    async def drive(self, sending: Coroutine[Any, Any, None]) -> None:
        await sending

    async def send(self, frame: DataFrame, run: ByteRun, check: Callable[[], None], *, more: bool) -> None:
        check()

    async def settle(self, layer: int, check: Callable[[], None]) -> None:
        pass

    async def end(self, layer: int, trailer: Trailer, check: Callable[[], None]) -> None:
        await self._stream.say(trailer, stall_timeout_s=20.0)
        self._peer()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("leaves", [False, True], ids=["acknowledges", "leaves"])
async def test_a_reader_may_acknowledge_before_the_owner_knows_that_the_trailer_has_left(leaves: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
    peer.sendall(request_frame())
    provider = MemoryProvider()
    lease = provider.lend(random_layers(2, 64))
    with mine, peer:
        stream = ByteStream(mine)

        def act() -> None:
            if not leaves:
                peer.sendall(encode_control(Ack()))
            peer.shutdown(socket.SHUT_WR)

        carrier = LateCarrier(stream, act)
        decoder = FrameDecoder(frozenset({FrameKind.REQUEST, FrameKind.ACK}))
        await OwnerSession(
            stream=stream, decoder=decoder, limits=LIMITS, payloads=carrier, open_layer=computed_run
        ).serve(provider)
    assert lease.closes == [not leaves]
    assert carrier.aborted is leaves


@pytest.mark.parametrize(
    ("said", "warnings"),
    [(b"", 0), (request_frame()[:10], 0), (b"GET / HTTP/1.1\r\nHost: there\r\n\r\n" * 2, 1), (None, 1)],
    ids=["leaves", "leaves in a frame", "something else", "silent"],
)
@pytest.mark.parametrize("kind", ["direct", "tcp"])
async def test_a_reader_that_leaves_without_a_word_is_nothing_to_warn_of(
    kind: str, said: bytes | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    kinds: dict[str, Callable[..., SocketTransport]] = {"direct": DirectTransport, "tcp": TcpTransport}
    owner = kinds[kind](handshake_timeout_s=20.0 if said is not None else 0.1)
    try:
        async with raw_reader(await owner.listen("127.0.0.1", MemoryProvider())) as (reader, writer):
            if said is not None:
                writer.write(said)
                writer.write_eof()
            # The owner closes: reading ends.
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
    finally:
        await owner.aclose()
    said_by = [record for record in caplog.records if record.name.startswith("common.transport")]
    assert [record.levelno for record in said_by] == [logging.WARNING] * warnings, caplog.text
    assert not any(record.getMessage().endswith(": ") for record in said_by), "it says what was wrong"
