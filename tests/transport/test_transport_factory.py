"""Transports are made by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.errors import ConfigError
from common.transport import factory
from common.transport.base import KvTransport
from common.transport.factory import TRANSPORT_NAMES, make_transport
from tests.transport.doubles import MemoryProvider, MemorySink, handle_for, random_layers


@pytest.mark.parametrize("name", TRANSPORT_NAMES)
async def test_names_are_what_the_transport_offers_and_reads(name: str) -> None:
    transport = make_transport(name)
    assert transport.name == ("direct+ucx" if name == "auto" else name)
    assert transport.name in transport.readable
    await transport.aclose()


async def test_auto_does_without_ucx_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_ucx = make_transport("auto")
    monkeypatch.setattr(factory, "ucx_installed", lambda: False)
    without = make_transport("auto")
    assert (with_ucx.name, without.name) == ("direct+ucx", "direct+tcp")
    assert with_ucx.readable == without.readable == frozenset({"tcp", "ucx", "direct+tcp", "direct+ucx"})
    await with_ucx.aclose()
    await without.aclose()


def made(name: str, monkeypatch: pytest.MonkeyPatch) -> KvTransport:
    """The transport of that name; "auto without ucx" is what "auto" makes where UCX is not installed."""
    with monkeypatch.context() as patched:
        if name == "auto without ucx":
            patched.setattr(factory, "ucx_installed", lambda: False)
        return make_transport(name.split()[0])


@pytest.mark.parametrize(
    ("owner_name", "reader_name", "path"),
    [
        ("tcp", "tcp", "tcp"),
        ("tcp", "auto", "tcp"),
        ("ucx", "tcp", "tcp"),
        ("ucx", "auto", "ucx"),
        ("ucx", "auto without ucx", "tcp"),
        ("auto", "tcp", "tcp"),
        ("auto", "ucx", "ucx"),
        ("auto", "auto", "direct"),
        ("auto", "auto without ucx", "direct"),
        ("auto without ucx", "auto", "direct"),
        ("auto without ucx", "tcp", "tcp"),
    ],
)
async def test_what_one_offers_and_the_other_reads_works(
    owner_name: str, reader_name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader, provider = made(owner_name, monkeypatch), made(reader_name, monkeypatch), MemoryProvider()
    data = random_layers(3, 300_000)
    lease = provider.lend(data)
    address = await owner.listen("127.0.0.1", provider)
    sink = MemorySink(3, 300_000)
    assert owner.name in reader.readable
    fetched = await reader.fetch(handle=handle_for(address, transport=owner.name), sink=sink, timeout_s=20.0)
    assert fetched.path == path
    assert sink.content == data and await lease.until_closed() == [True]
    await reader.aclose()
    await owner.aclose()


async def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"kv_transport.*'pigeon'.*tcp"):
        make_transport("pigeon")


def test_the_data_plane_needs_no_torch() -> None:
    program = "import sys, common.transport.factory; sys.exit('torch' in sys.modules or 'grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
