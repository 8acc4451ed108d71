"""Addresses as they travel in handles: "host:port", IPv6 hosts in brackets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from common.errors import Reason, WireError

SocketAddress = tuple[Any, ...]


async def resolve(address: str) -> tuple[socket.AddressFamily, SocketAddress]:
    """Socket family and address for `address`; a name is looked up off the loop.

    Raises `WireError` PEER_LOST for text that is no address, `OSError` for a name that does not resolve.
    """
    try:
        return await _resolve(*_split(address))
    except ValueError:
        # A NUL, a label that IDNA cannot hold: what the socket module refuses to look at is no address either.
        raise WireError(Reason.PEER_LOST, "the KV peer's address is not host:port") from None


def _split(address: str) -> tuple[str, int]:
    """Host and port; raises ValueError for what is neither."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(address)
    return host, int(port)


async def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, SocketAddress]:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found_family, _, _, _, target = infos[0]
    return found_family, target


def join(host: str, port: int) -> str:
    """Inverse of what `resolve` splits."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
