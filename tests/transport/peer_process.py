"""A KV owner in a process of its own: `python peer_process.py KIND LAYERS LAYER_BYTES DO_AT_CHECK SIGNAL`.

Prints its address, then serves every read from the same bytes until killed; sends itself SIGNAL before send number
DO_AT_CHECK of each read (0: never).
"""

from __future__ import annotations

import asyncio
import os
import sys

from common.transport.base import KvReadRequest
from tests.transport.doubles import OWNER, MemoryLease, random_layers
from tests.transport.kinds import KINDS


class EndlessProvider:
    def __init__(self, layers: int, layer_bytes: int, at_check: int, signal_number: int) -> None:
        self._data = random_layers(layers, layer_bytes)
        self._at_check = at_check
        self._signal = signal_number

    life = OWNER
    in_host_memory = True

    async def until_begun(self, request: KvReadRequest) -> None:
        """All of it is there from the start."""

    def open_read(self, request: KvReadRequest) -> MemoryLease:
        lease = MemoryLease(self._data, piece_bytes=1 << 20, gap_bytes=4096)
        lease.on_check = self._maybe_die
        return lease

    def _maybe_die(self, check: int) -> None:
        if check == self._at_check:
            os.kill(os.getpid(), self._signal)


async def main(kind: str, *numbers: int) -> None:
    transport = KINDS[kind]()
    address = await transport.listen("127.0.0.1", EndlessProvider(*numbers))
    print(address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
