"""Transports by the name that configuration and `KvHandle.transport` use."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import ConfigError
from common.transport.base import KvTransport
from common.transport.inproc import InprocNetwork, InprocTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport

_INPROC_NETWORK = InprocNetwork()
_MAKERS: dict[str, Callable[[], KvTransport]] = {
    "tcp": TcpTransport,
    "ucx": UcxTransport,
    "inproc": lambda: InprocTransport(_INPROC_NETWORK),
}
TRANSPORT_NAMES = tuple(_MAKERS)


def make_transport(name: str) -> KvTransport:
    """A transport of that name for the running event loop; raises `ConfigError` for an unknown one."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"kv_transport: {name!r} is not one of {', '.join(TRANSPORT_NAMES)}")
    return maker()
