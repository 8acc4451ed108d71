"""Owners that are connected to and never answer: connecting has a timeout of its own, where it takes introductions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from common.errors import Reason, WireError
from common.transport.auto import AutoTransport
from common.transport.direct import DirectTransport
from common.transport.socket_transport import SocketTransport
from common.transport.ucx import UcxTransport
from tests.transport.doubles import PATIENCE_S, MemorySink, handle_for
from tests.transport.wire_peer import scripted_owner

LAYER = 3000
READERS: dict[str, Callable[[], SocketTransport]] = {
    "auto": lambda: AutoTransport(ucx=None, connect_timeout_s=0.2),
    "direct": lambda: DirectTransport(connect_timeout_s=0.2),
    "ucx": lambda: UcxTransport(connect_timeout_s=0.2),
}


@pytest.mark.parametrize("cut", [{}, {"piece_bytes": 1000, "gap_bytes": 16}], ids=["one run", "pieces"])
@pytest.mark.parametrize("kind", sorted(READERS))
async def test_an_owner_that_never_introduces_itself_is_given_up(kind: str, cut: dict[str, int]) -> None:
    """Long before the time for the whole fetch is over."""

    async def silent(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    reader = READERS[kind]()
    try:
        async with scripted_owner(silent) as address:
            wanted = handle_for(address, transport="direct+tcp" if kind == "auto" else kind)
            with pytest.raises(WireError, match=r"within 0\.2 s") as caught:
                await reader.fetch(handle=wanted, sink=MemorySink(2, LAYER, **cut), timeout_s=PATIENCE_S)
    finally:
        await reader.aclose()
    assert caught.value.reason is Reason.PEER_LOST
