"""Transports are made by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.errors import ConfigError
from common.transport import factory
from common.transport.factory import TRANSPORT_NAMES, make_transport
from tests.transport.doubles import MemoryProvider, MemorySink, handle_for, random_layers


@pytest.mark.parametrize("name", TRANSPORT_NAMES)
async def test_names_are_what_the_transport_offers_and_reads(name: str) -> None:
    transport = make_transport(name)
    assert transport.name == ("ucx" if name == "auto" else name)
    assert transport.name in transport.readable
    await transport.aclose()


async def test_auto_is_tcp_where_ucx_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "ucx_installed", lambda: False)
    transport = make_transport("auto")
    assert (transport.name, transport.readable) == ("tcp", frozenset({"tcp", "ucx"}))
    await transport.aclose()


@pytest.mark.parametrize(
    ("owner_name", "reader_name"), [("auto", "tcp"), ("ucx", "tcp"), ("tcp", "auto"), ("auto", "auto")]
)
async def test_what_one_offers_and_the_other_reads_works(owner_name: str, reader_name: str) -> None:
    owner, reader, provider = make_transport(owner_name), make_transport(reader_name), MemoryProvider()
    data = random_layers(3, 300_000)
    lease = provider.lend(data)
    address = await owner.listen("127.0.0.1", provider)
    sink = MemorySink(3, 300_000)
    assert owner.name in reader.readable
    await reader.fetch(handle=handle_for(address, transport=owner.name), sink=sink, timeout_s=20.0)
    assert sink.content == data and await lease.until_closed() == [True]
    await reader.aclose()
    await owner.aclose()


async def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"kv_transport.*'pigeon'.*tcp"):
        make_transport("pigeon")


def test_the_data_plane_needs_no_torch() -> None:
    program = "import sys, common.transport.factory; sys.exit('torch' in sys.modules or 'grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
