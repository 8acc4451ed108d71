"""How a reader knows whose memory it reads: the owner holds a proof there that nobody could make before it was asked.

The proof is keyed by a nonce that the reader has just drawn, so bytes that lie in some process anyway are none. It is
of one life, so no owner can pass on the one that another owner holds and have that one's memory read as its own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import numpy as np

from common.core.ids import WorkerLife
from common.transport.memory_run import MemoryRun, Spans, address_of

NONCE_BYTES = 32
PROOF_BYTES = 32


class HeldProof:
    """An owner's answer to a nonce, at `address` in this process' memory for as long as this object lives."""

    def __init__(self, nonce: bytes, owner: WorkerLife) -> None:
        """`owner`: the life that this process lives now."""
        self._proof = _proof(nonce, owner)
        self.address = address_of(memoryview(self._proof))


class Challenge:
    """What a reader asks of a process that should be `owner`: once for each connection, with a fresh `nonce`."""

    def __init__(self, owner: WorkerLife) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._owner = owner

    def met_at(self, address: int, read: Callable[[Spans, Spans], None]) -> bool:
        """Whether the proof lies at `address` of the memory that `read` copies from, the second spans to the first.

        Raises what `read` raises, `OSError`.
        """
        found = np.zeros(PROOF_BYTES, dtype=np.uint8)
        landing = MemoryRun(found.data, [0], [PROOF_BYTES])
        read(landing.spans, Spans(np.array([[address, PROOF_BYTES]], dtype=np.uint64)))
        # Made only now: whoever names this process' own memory does not find it there either.
        return found.tobytes() == _proof(self.nonce, self._owner)


def _proof(nonce: bytes, owner: WorkerLife) -> bytes:
    life = f"{owner.incarnation} {owner.worker_id}".encode()
    return hashlib.blake2b(life, key=nonce, digest_size=PROOF_BYTES).digest()
