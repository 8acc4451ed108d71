"""An owner of K/V, and every transport that it may lend it over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from common.transport.base import KvTransport
from common.transport.direct import DirectTransport
from common.transport.inproc import InprocNetwork, InprocTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport
from tests.worker.kv_owner import Owner

MAKERS: dict[str, Callable[[], KvTransport]] = {
    "direct": DirectTransport,
    "inproc": lambda: InprocTransport(InprocNetwork()),
    "tcp": TcpTransport,
    "ucx": UcxTransport,
}


@pytest.fixture
async def owner() -> Owner:
    """With nothing on offer yet."""
    return Owner()


@pytest.fixture(params=sorted(MAKERS))
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[KvTransport]:
    """One of each kind."""
    made = MAKERS[request.param]()
    yield made
    await made.aclose()
