"""The transports that the contract suite runs over, and an owner with its provider."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from common.core.work import KvHandle
from common.transport.auto import AutoTransport
from common.transport.base import Fetched, KvSink, KvTransport
from common.transport.direct import DirectTransport
from common.transport.inproc import InprocNetwork, InprocTransport
from common.transport.memory_run import Spans
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport
from tests.transport.doubles import PATIENCE_S, MemoryProvider, handle_for


@dataclass
class Pair:
    """One owner that listens and one reader, of the same kind."""

    owner: KvTransport
    reader: KvTransport
    provider: MemoryProvider
    address: str

    def handle(self, number: int = 0) -> KvHandle:
        return handle_for(self.address, number, transport=self.reader.name)

    async def fetch(
        self, sink: KvSink, number: int = 0, timeout_s: float = PATIENCE_S, *, early: bool = False
    ) -> Fetched:
        return await self.reader.fetch(handle=self.handle(number), sink=sink, timeout_s=timeout_s, early=early)


def _inproc_maker() -> Callable[[], KvTransport]:
    network = InprocNetwork()
    return lambda: InprocTransport(network)


def _patient(kind: Callable[..., TcpTransport | UcxTransport | DirectTransport]) -> KvTransport:
    """Owner and reader share one loop here: what the one computes is the other's silence."""
    return kind(connect_timeout_s=PATIENCE_S, handshake_timeout_s=PATIENCE_S, stall_timeout_s=PATIENCE_S)


def _refused(pid: int, local: Spans, remote: Spans) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def _fallen_back() -> KvTransport:
    """Tries the direct path, may not, and goes on over TCP."""
    return AutoTransport(
        ucx=None,
        read=_refused,
        connect_timeout_s=PATIENCE_S,
        handshake_timeout_s=PATIENCE_S,
        stall_timeout_s=PATIENCE_S,
    )


_MAKERS: dict[str, Callable[[], Callable[[], KvTransport]]] = {
    "auto, not direct": lambda: _fallen_back,
    "direct": lambda: functools.partial(_patient, DirectTransport),
    "inproc": _inproc_maker,
    "tcp": lambda: functools.partial(_patient, TcpTransport),
    "ucx": lambda: functools.partial(_patient, UcxTransport),
    "ucx over tcp": lambda: lambda: _patient(functools.partial(UcxTransport, carriers="tcp,self")),
}


@pytest.fixture(params=sorted(_MAKERS))
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    make = _MAKERS[request.param]()
    owner, reader, provider = make(), make(), MemoryProvider()
    address = await owner.listen("127.0.0.1", provider)
    yield Pair(owner, reader, provider, address)
    await reader.aclose()
    await owner.aclose()
    for lease in provider.leases.values():
        assert len(lease.closes) == lease.opened.is_set(), "a lease is closed exactly once if it was opened"
        assert not lease.views_after_close
