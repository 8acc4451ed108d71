"""Transports by the name that configuration uses."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import ConfigError
from common.transport.auto import AutoTransport
from common.transport.base import KvTransport
from common.transport.direct import DirectTransport
from common.transport.inproc import InprocNetwork, InprocTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport
from common.transport.ucx_on_demand import UcxOnDemand
from common.transport.ucx_runtime import ucx_installed

_INPROC_NETWORK = InprocNetwork()


def _make_auto() -> KvTransport:
    return AutoTransport(ucx=UcxOnDemand() if ucx_installed() else None)


_MAKERS: dict[str, Callable[[], KvTransport]] = {
    "tcp": TcpTransport,
    "ucx": UcxTransport,
    "auto": _make_auto,
    "direct": DirectTransport,
    "inproc": lambda: InprocTransport(_INPROC_NETWORK),
}
TRANSPORT_NAMES = tuple(_MAKERS)


def make_transport(name: str) -> KvTransport:
    """A transport of that name for the running event loop.

    Raises `ConfigError` for an unknown name, and for "ucx" where UCXX is not installed; "auto" does without it.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"kv_transport: {name!r} is not one of {', '.join(TRANSPORT_NAMES)}")
    return maker()
