"""Addresses in handles: both kinds of literals, names, and what is none."""

from __future__ import annotations

import socket

import pytest

from common.errors import Reason, WireError
from common.transport.address import join, resolve


@pytest.mark.parametrize(
    ("address", "family", "target"),
    [
        ("127.0.0.1:80", socket.AF_INET, ("127.0.0.1", 80)),
        ("10.1.2.3:65535", socket.AF_INET, ("10.1.2.3", 65535)),
        ("[::1]:7000", socket.AF_INET6, ("::1", 7000)),
    ],
)
async def test_literals(address: str, family: socket.AddressFamily, target: tuple[str, int]) -> None:
    assert await resolve(address) == (family, target)
    assert join(*target) == address


async def test_names_are_looked_up() -> None:
    family, target = await resolve("localhost:80")
    assert (family, target[0]) in {(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")}
    assert target[1] == 80


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":80", "host:-1", "host:65536", "host:8o", "host:\u0661", "host:" + "9" * 5000),
        *("127.0.0.1\0:80", "host\0:80", "\u00fc" * 80 + ":80", "a" * 300 + ":80"),
    ],
)
async def test_what_is_no_address(address: str) -> None:
    with pytest.raises(WireError) as caught:
        await resolve(address)
    assert caught.value.reason is Reason.PEER_LOST
