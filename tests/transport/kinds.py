"""The transports between processes that the fault tests run over; UCX as it is (shared memory here), and over TCP."""

from __future__ import annotations

from collections.abc import Callable

from common.transport.direct import DirectTransport
from common.transport.socket_transport import SocketTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport

KINDS: dict[str, Callable[[], SocketTransport]] = {
    "direct": DirectTransport,
    "tcp": TcpTransport,
    "ucx": UcxTransport,
    "ucx-tcp": lambda: UcxTransport(carriers="tcp,self"),
}
