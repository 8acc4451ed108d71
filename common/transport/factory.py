"""Transports by the name that configuration uses."""

from __future__ import annotations

import logging
from collections.abc import Callable

from common.errors import ConfigError
from common.transport.base import KvTransport
from common.transport.inproc import InprocNetwork, InprocTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import AutoTransport, UcxTransport
from common.transport.ucx_runtime import ucx_installed

_log = logging.getLogger(__name__)
_INPROC_NETWORK = InprocNetwork()


def _make_auto() -> KvTransport:
    if not ucx_installed():
        return TcpTransport()
    try:
        return AutoTransport()
    except ConfigError as error:
        _log.warning("K/V moves over tcp: %s", error)
        return TcpTransport()


_MAKERS: dict[str, Callable[[], KvTransport]] = {
    "tcp": TcpTransport,
    "ucx": UcxTransport,
    "auto": _make_auto,
    "inproc": lambda: InprocTransport(_INPROC_NETWORK),
}
TRANSPORT_NAMES = tuple(_MAKERS)


def make_transport(name: str) -> KvTransport:
    """A transport of that name for the running event loop.

    Raises `ConfigError` for an unknown name, and for "ucx" where UCXX is not installed; "auto" is TCP there.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"kv_transport: {name!r} is not one of {', '.join(TRANSPORT_NAMES)}")
    return maker()
