"""UCX pairs endpoints in the order in which they are made: connections made at once must not end each other."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from common.errors import Reason, WireError
from common.transport.ucx import UcxTransport
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime
from tests.transport.doubles import PATIENCE_S, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.test_direct_faults import closing

LAYERS, LAYER = 2, 300_000
"""Long enough that UCX answers through the pair (rendezvous)."""

OVERTAKING_S = 0.3

SOON_S = 10.0
"""Less than the 20 s that UCX's keepalive takes."""


class OvertakenRuntime(UcxRuntime):
    """The first of two endpoints asked for at once is made last."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self._second_made = asyncio.Event()

    async def connect(self, address: bytes) -> UcxEndpoint:
        self.asked += 1
        if self.asked == 1:
            # The second waits for this one, or it does not.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._second_made.wait(), OVERTAKING_S)
            return await super().connect(address)
        made = await super().connect(address)
        self._second_made.set()
        return made


class HeldRuntime(UcxRuntime):
    """The first endpoint is made when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def connect(self, address: bytes) -> UcxEndpoint:
        self.asked.set()
        await self.go_on.wait()
        return await super().connect(address)


@pytest.mark.parametrize("in_long_runs", [False, True], ids=["messages", "reads"])
async def test_a_fetch_that_is_cut_in_its_introduction_takes_no_other_with_it(
    in_long_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, data = MemoryProvider(), random_layers(LAYERS, LAYER)
    held = HeldRuntime()
    with monkeypatch.context() as patch:
        patch.setattr("common.transport.ucx.UcxRuntime", lambda **_: held)
        owner = UcxTransport()
    reader = UcxTransport()

    async def fetch(number: int) -> bytes:
        sink = MemorySink(LAYERS, LAYER)
        sink.in_long_runs = in_long_runs
        handle = handle_for(address, number, transport="ucx")
        await reader.fetch(handle=handle, sink=sink, timeout_s=SOON_S)
        return b"".join(sink.content)

    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        for number in (0, 1, 2, 4, 5):
            provider.lend(data, number)
        cut = asyncio.create_task(fetch(0))
        await held.asked.wait()
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        held.go_on.set()
        assert [*await asyncio.gather(fetch(1), fetch(2))] == [b"".join(data)] * 2
        # A refusal ends one of both connections; the other is left.
        with pytest.raises(WireError) as caught:
            await fetch(3)
        assert caught.value.reason is Reason.KV_NOT_FOUND
        assert await fetch(4) == b"".join(data)
        assert await fetch(5) == b"".join(data)


class LateRuntime(UcxRuntime):
    """What it connects is made, but its caller has it only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[UcxEndpoint] = []
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def connect(self, address: bytes) -> UcxEndpoint:
        self.made.append(await super().connect(address))
        self.asked.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            await self.made[0].abort([])
            raise
        return self.made[0]


@pytest.mark.parametrize("turns", range(8))
async def test_a_reader_that_closes_when_a_cut_introduction_ends_leaves_nothing_open(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, provider = UcxTransport(), MemoryProvider()
    late = LateRuntime()
    with monkeypatch.context() as patch:
        patch.setattr("common.transport.ucx.UcxRuntime", lambda **_: late)
        reader = UcxTransport()
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        handle = handle_for(address, 0, transport="ucx")
        cut = asyncio.create_task(reader.fetch(handle=handle, sink=MemorySink(LAYERS, LAYER), timeout_s=SOON_S))
        await late.asked.wait()
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        late.go_on.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await reader.aclose()
        assert not late.made[0].alive


async def test_a_connection_that_ends_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, provider, data = UcxTransport(), MemoryProvider(), random_layers(LAYERS, LAYER)
    runtime = OvertakenRuntime()
    monkeypatch.setattr("common.transport.ucx.UcxRuntime", lambda **_: runtime)
    reader = UcxTransport()

    async def fetch(number: int) -> bytes:
        sink = MemorySink(LAYERS, LAYER)
        sink.in_long_runs = False  # by messages
        handle = handle_for(address, number, transport="ucx")
        await reader.fetch(handle=handle, sink=sink, timeout_s=PATIENCE_S)
        return b"".join(sink.content)

    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        for number in (0, 1, 3):
            provider.lend(data, number)
        assert [*await asyncio.gather(fetch(0), fetch(1))] == [b"".join(data)] * 2
        assert runtime.asked == 2
        # The last one used is used next; it ends with the refusal.
        with pytest.raises(WireError) as caught:
            await fetch(2)
        assert caught.value.reason is Reason.KV_NOT_FOUND
        assert await fetch(3) == b"".join(data)
        assert runtime.asked == 2, "over the connection that was left"
