"""Introductions of UCX workers are sealed with the life that is read from.

UCX aborts the process over an address, or a key, that is damaged or made up (UCX 1.21), so neither gets there on the
word of somebody who does not know that life: its number is told to readers that the scheduler sends, not to whoever
finds the port, or takes over a port that was a worker's. It is no password: who may ask the scheduler can have it.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from dataclasses import replace

from common.core.ids import WorkerLife
from common.transport.messages import UcxPeer

_SEAL_BYTES = 32


class Side(enum.Enum):
    """Who introduces itself: what one side has said, the other cannot say back."""

    READER = "reader"
    OWNER = "owner"


def sealed(peer: UcxPeer, owner: WorkerLife, side: Side) -> UcxPeer:
    """`peer` as `side` of a connection to `owner` says it."""
    return replace(peer, seal=_seal(peer, owner, side))


def is_sealed(peer: UcxPeer, owner: WorkerLife, side: Side) -> bool:
    """Whether `side` of a connection to `owner` has said `peer`, as it is."""
    return hmac.compare_digest(peer.seal, _seal(peer, owner, side))


def _seal(peer: UcxPeer, owner: WorkerLife, side: Side) -> bytes:
    life = f"{side.value} {owner.incarnation} {owner.worker_id}".encode()
    key = hashlib.blake2b(life).digest()
    return hashlib.blake2b(replace(peer, seal=b"").encode(), key=key, digest_size=_SEAL_BYTES).digest()
