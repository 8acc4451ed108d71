"""`auto`: which path K/V takes where a reader may not, or cannot, take it out of its owner's memory."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.errors import ConfigError, Reason
from common.transport.auto import AutoTransport
from common.transport.direct import DirectTransport
from common.transport.ucx_on_demand import UcxOnDemand, start_ucx
from common.transport.ucx_runtime import UcxRuntime
from tests.transport.doubles import MemoryLease, MemoryProvider, MemorySink, handle_for, random_layers
from tests.transport.test_direct_faults import APART, ELSEWHERE, Forbidden, Reads, closing, failure_of


async def fetched_path(reader: AutoTransport, owner: AutoTransport, address: str, lease: MemoryLease) -> str:
    sink = MemorySink(2, 100_000)
    fetched = await reader.fetch(handle=handle_for(address, transport=owner.name), sink=sink, timeout_s=20.0)
    assert sink.content == random_layers(2, 100_000)
    assert await lease.until_closed() == [True]
    return fetched.path


@pytest.mark.parametrize("ucx", [False, True], ids=["without ucx", "with ucx"])
@pytest.mark.parametrize("why", ["forbidden", "other namespace", "other machine", "owner on a GPU", "nothing"])
async def test_where_memory_cannot_be_read_the_fetch_goes_on_by_other_means(
    why: str, ucx: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By ucx, if both have it; but not under a kernel that keeps both apart, which would not let UCX share memory."""
    reads = Forbidden() if why == "forbidden" else Reads()
    owner = AutoTransport(ucx=UcxOnDemand() if ucx else None)
    machine = {"other machine": ELSEWHERE, "other namespace": APART}.get(why)
    reader = AutoTransport(ucx=UcxOnDemand() if ucx else None, machine=machine, read=reads)
    provider = MemoryProvider()
    provider.in_host_memory = why != "owner on a GPU"
    other = "ucx" if ucx and why in ("other machine", "owner on a GPU") else "tcp"
    with caplog.at_level(logging.INFO):
        async with closing(reader, owner):
            address = await owner.listen("127.0.0.1", provider)
            for _ in range(3):
                lease = provider.lend(random_layers(2, 100_000))
                path = await fetched_path(reader, owner, address, lease)
                assert path == ("direct" if why == "nothing" else other)
    assert reads.count == {"forbidden": 1, "nothing": 1 + 3}.get(why, 0), "an owner that cannot be read is asked once"
    said = [record for record in caplog.records if record.name.startswith("common.transport")]
    assert [record.levelno for record in said] == [logging.INFO], caplog.text
    assert f"comes by {'direct' if why == 'nothing' else other}" in said[0].getMessage()


async def test_ucx_starts_with_the_first_read_that_needs_it() -> None:
    starts: list[str] = []

    def counted(name: str) -> UcxOnDemand:
        def start(loop: asyncio.AbstractEventLoop) -> UcxRuntime:
            starts.append(name)
            return start_ucx(loop)

        return UcxOnDemand(start)

    owner, near = AutoTransport(ucx=counted("owner")), AutoTransport(ucx=counted("near"))
    far = AutoTransport(ucx=counted("far"), machine=ELSEWHERE)
    provider = MemoryProvider()
    async with closing(near, far, owner):
        address = await owner.listen("127.0.0.1", provider)
        assert await fetched_path(near, owner, address, provider.lend(random_layers(2, 100_000))) == "direct"
        assert not starts
        for _ in range(2):
            assert await fetched_path(far, owner, address, provider.lend(random_layers(2, 100_000))) == "ucx"
        assert sorted(starts) == ["far", "owner"]


@pytest.mark.parametrize("where", ["owner", "reader"])
async def test_where_ucx_does_not_start_the_path_is_tcp(where: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(loop: asyncio.AbstractEventLoop) -> UcxRuntime:
        raise ConfigError("kv_transport: UCX cannot start here")

    owner = AutoTransport(ucx=UcxOnDemand(broken if where == "owner" else start_ucx))
    reader = AutoTransport(ucx=UcxOnDemand(broken if where == "reader" else start_ucx), machine=ELSEWHERE)
    provider = MemoryProvider()
    with caplog.at_level(logging.INFO):
        async with closing(reader, owner):
            address = await owner.listen("127.0.0.1", provider)
            for _ in range(3):
                lease = provider.lend(random_layers(2, 100_000))
                assert await fetched_path(reader, owner, address, lease) == "tcp"
    said = [record.getMessage() for record in caplog.records if record.name.startswith("common.transport")]
    assert len([line for line in said if "UCX cannot start here" in line]) == 1, said
    assert any(
        f"comes by tcp (no UCX path to the KV owner: UCX does not start at the {where})" in line for line in said
    )


async def test_a_reader_on_a_gpu_does_not_try() -> None:
    owner, reads = AutoTransport(ucx=None), Reads()
    reader = AutoTransport(ucx=None, read=reads)
    provider = MemoryProvider()
    lease = provider.lend(random_layers(2, 64))
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        sink = MemorySink(2, 64)
        sink.in_host_memory = False
        fetched = await reader.fetch(handle=handle_for(address, transport=owner.name), sink=sink, timeout_s=20.0)
        assert (fetched.path, reads.count) == ("tcp", 0)
        assert await lease.until_closed() == [True]
        direct = DirectTransport()
        async with closing(direct):
            assert (await failure_of(direct, address, sink)).reason is Reason.LAYOUT_MISMATCH


async def test_a_lost_owner_is_lost_and_nothing_else_is_tried() -> None:
    owner, provider = AutoTransport(ucx=None), MemoryProvider()
    address = await owner.listen("127.0.0.1", provider)
    await owner.aclose()
    reader = AutoTransport(ucx=None)
    async with closing(reader):
        assert (await failure_of(reader, address, MemorySink(1, 8), owner.name)).reason is Reason.PEER_LOST
