"""A KV owner in a process of its own: `python peer_process.py LAYERS LAYER_BYTES [die-at-check N]`.

Prints its address, then serves every read from the same bytes until killed; may kill itself before its Nth send.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from common.transport.base import KvReadRequest
from common.transport.tcp import TcpTransport
from tests.transport.doubles import MemoryLease, random_layers


class EndlessProvider:
    def __init__(self, layers: int, layer_bytes: int, die_at_check: int) -> None:
        self._data = random_layers(layers, layer_bytes)
        self._die_at_check = die_at_check

    def open_read(self, request: KvReadRequest) -> MemoryLease:
        lease = MemoryLease(self._data, piece_bytes=65_536, gap_bytes=4096)
        lease.on_check = self._maybe_die
        return lease

    def _maybe_die(self, check: int) -> None:
        if check == self._die_at_check:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(layers: int, layer_bytes: int, die_at_check: int = 0) -> None:
    transport = TcpTransport()
    address = await transport.listen("127.0.0.1", EndlessProvider(layers, layer_bytes, die_at_check))
    print(address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
