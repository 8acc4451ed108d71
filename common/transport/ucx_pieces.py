"""What both ends of a UCX connection must agree on without a word: how layers are cut, and which tag a piece has."""

from __future__ import annotations

from collections.abc import Iterator

from common.transport.frames import DataFrame

PIECE_BYTES = 4 << 20
"""Longest piece: long enough for full speed (4.9 GB/s of 6.5 through shared memory alone, all of it with three on
their way), short enough that its checksum holds the event loop for well under a millisecond."""

SEND_WINDOW = 4
"""Pieces that an owner keeps on their way at once."""

RECEIVE_WINDOW = 8
"""Pieces that a reader is ready for at once: more than can arrive while it looks at the oldest."""

_TAGS = 1 << 64


def pieces(layer: int, layer_bytes: int) -> Iterator[DataFrame]:
    """The layer in order. Longer ones are cut between K and V, so that a piece never spans both halves of it."""
    part_bytes = layer_bytes // 2 if layer_bytes % 2 == 0 and layer_bytes > PIECE_BYTES // 64 else layer_bytes
    for start in range(0, layer_bytes, part_bytes or 1):
        for offset in range(start, start + part_bytes, PIECE_BYTES):
            length = min(PIECE_BYTES, start + part_bytes - offset)
            yield DataFrame(layer=layer, offset_bytes=offset, length_bytes=length)


class TagSequence:
    """The tags of one connection's pieces, one after the other from a number that its reader drew."""

    def __init__(self, first: int) -> None:
        self._next = first

    def __iter__(self) -> TagSequence:
        return self

    def __next__(self) -> int:
        tag, self._next = self._next, (self._next + 1) % _TAGS
        return tag
