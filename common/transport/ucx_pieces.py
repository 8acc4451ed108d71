"""What both ends of a UCX connection must agree on without a word: how layers are cut, and which tag a piece has."""

from __future__ import annotations

from collections.abc import Iterator

from common.transport.frames import DataFrame

PIECE_BYTES = 4 << 20
"""Longest piece: long enough for full speed (4.9 GB/s of 6.5 through shared memory alone, all of it with three on
their way), short enough that its checksum holds the event loop for well under a millisecond."""

SEND_WINDOW_BYTES, SEND_WINDOW_PIECES = 16 << 20, 64
"""What an owner keeps on its way at once: as much as the first allows, in no more pieces than the second."""

RECEIVE_WINDOW_BYTES, RECEIVE_WINDOW_PIECES = 2 * SEND_WINDOW_BYTES, 2 * SEND_WINDOW_PIECES
"""What a reader is ready for at once: more than can arrive while it looks at the oldest."""

_TAGS = 1 << 64


LONG_LAYER_BYTES = 2 << 20
"""Layers from this on are cut between K and V first: in place, those are two runs of memory."""


def pieces(layer: int, layer_bytes: int) -> Iterator[DataFrame]:
    """The layer in order, no piece longer than `PIECE_BYTES`."""
    part_bytes = layer_bytes // 2 if layer_bytes % 2 == 0 and layer_bytes >= LONG_LAYER_BYTES else layer_bytes
    for start in range(0, layer_bytes, part_bytes or 1):
        for offset in range(start, start + part_bytes, PIECE_BYTES):
            length = min(PIECE_BYTES, start + part_bytes - offset)
            yield DataFrame(layer=layer, offset_bytes=offset, length_bytes=length)


class Window:
    """Room for what is on its way, in bytes and in pieces; one piece always fits."""

    def __init__(self, *, max_bytes: int, max_pieces: int) -> None:
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._bytes = 0
        self._pieces = 0

    def has_room(self, length_bytes: int) -> bool:
        """Whether a piece of that length may set out."""
        fits = self._bytes + length_bytes <= self._max_bytes and self._pieces < self._max_pieces
        return fits or not self._pieces

    def add(self, length_bytes: int) -> None:
        """It sets out."""
        self._bytes += length_bytes
        self._pieces += 1

    def remove(self, length_bytes: int) -> None:
        """It has arrived."""
        self._bytes -= length_bytes
        self._pieces -= 1


class TagSequence:
    """The tags of one connection's pieces, one after the other from a number that its reader drew."""

    def __init__(self, first: int) -> None:
        self._next = first

    def __iter__(self) -> TagSequence:
        return self

    def __next__(self) -> int:
        tag, self._next = self._next, (self._next + 1) % _TAGS
        return tag
