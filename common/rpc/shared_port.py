"""Two lives of one service at one port: the next listens beside the last, and every call goes to one that serves.

Linux lets several sockets listen at a port (SO_REUSEPORT) and spreads new connections over them. Left at that, whoever
leaves would reset the connections that wait at its own socket; so a filter sends all new ones to the newcomer. Those
that are there move over by themselves: a server that shares its port asks its clients every few seconds to connect anew
(GOAWAY), which costs no call. After that nobody calls the former life any more, and it may stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator

from common.errors import ConfigError

SIGNAL = signal.SIGUSR2
"""Tells a service that its successor listens at its port."""

CONNECTION_AGE_S = 5.0
"""Age at which a connection is asked to be made anew; gRPC varies it by a tenth."""

MOVE_S = 1.1 * CONNECTION_AGE_S + 0.5
"""Time after which no client has a connection to the former life for new calls."""

_SO_ATTACH_REUSEPORT_CBPF = 51
_RETURN_CONSTANT = 0x06


def is_shareable() -> bool:
    """Whether ports can be shared in this way here."""
    return sys.platform == "linux"


def check_shareable(option: str) -> None:
    """Raise ConfigError, naming `option`, where they cannot."""
    if not is_shareable():
        raise ConfigError(f"{option}: needs Linux")


def take_new_connections(port: int) -> int:
    """From now on the second of two processes that listen at `port` gets all new connections; alone, this one does.

    Returns the number of sockets by which this process listens there.
    """
    # One classic BPF instruction: "return 1", the place of the later socket of two; kept by those that come after.
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 1))
    option = struct.pack("HP", 1, ctypes.addressof(program))
    count = 0
    for listener in _listeners(port):
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, option)
            count += 1
    return count


def _listeners(port: int) -> Iterator[socket.socket]:
    """Copies of this process' sockets that listen at `port`: gRPC does not hand out its own."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
        if is_tcp and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
            yield found
        else:
            found.close()
