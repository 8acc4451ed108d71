"""Scattered views seen as one run of bytes."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

from common.transport.checksum import views_checksum

MAX_VIEWS_PER_CALL = 1024
"""Buffers that one sendmsg or recvmsg call takes (IOV_MAX on Linux)."""


class ByteRun:
    """The concatenation of `views` (format "B", one dimension), without copying them.

    Slicing costs two bisections and a list slice, however many views there are: no loop over pages in Python.
    """

    __slots__ = ("_ends", "_views", "size_bytes")

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = list(views)
        self._ends = list(accumulate(map(len, self._views)))
        self.size_bytes = self._ends[-1] if self._ends else 0
        assert sum(map(attrgetter("nbytes"), self._views)) == self.size_bytes, "views must be flat bytes"

    def slice(self, start_bytes: int, length_bytes: int, max_views: int = sys.maxsize) -> list[memoryview]:
        """Views of bytes [start, start + length), cut short after `max_views` views; length >= 1."""
        assert 0 <= start_bytes < start_bytes + length_bytes <= self.size_bytes
        end_bytes = start_bytes + length_bytes
        first = bisect_right(self._ends, start_bytes)
        skipped_bytes = start_bytes - (self._ends[first] - len(self._views[first]))
        if end_bytes <= self._ends[first]:
            return [self._views[first][skipped_bytes : skipped_bytes + length_bytes]]
        last = bisect_right(self._ends, end_bytes - 1)
        window = self._views[first : min(last + 1, first + max_views)]
        if last < first + max_views:
            window[-1] = window[-1][: len(window[-1]) - (self._ends[last] - end_bytes)]
        window[0] = window[0][skipped_bytes:]
        return window

    def joined(self, start_bytes: int, length_bytes: int) -> memoryview | bytes:
        """Bytes [start, start + length) in one piece: a view where one view holds them, else a copy."""
        if length_bytes == 0:
            return b""
        window = self.slice(start_bytes, length_bytes)
        return window[0] if len(window) == 1 else b"".join(window)

    def checksum(self, start_bytes: int, length_bytes: int) -> int:
        """`payload_checksum` of bytes [start, start + length)."""
        return views_checksum(self.slice(start_bytes, length_bytes) if length_bytes else [])

    def write(self, start_bytes: int, data: memoryview | bytes) -> None:
        """Copy `data` to bytes [start, start + len(data))."""
        taken = 0
        for view in self.slice(start_bytes, len(data)):
            view[:] = data[taken : taken + len(view)]
            taken += len(view)
