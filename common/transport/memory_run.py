"""Memory in pieces seen as one run: by address and length for the kernel, and by content for the checksum."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from common.transport.checksum import wide_checksum, wide_scattered_checksum

MAX_SPANS = 1024
"""Spans that one system call takes (IOV_MAX on Linux), and one message names."""

SPAN_BYTES = 16
"""A span on the wire: address and length, each u64, little-endian."""

SpanTable = npt.NDArray[np.uint64]
"""Addresses and lengths (bytes), [spans, 2], contiguous: the kernel's `struct iovec` of a 64-bit machine."""

_ADDRESS, _LENGTH = 0, 1
_HIGHEST_ADDRESS = 1 << 63
"""No process has memory there or above."""


class Spans:
    """Where bytes lie in the memory of some process, in order."""

    __slots__ = ("_ends", "size_bytes", "table")

    def __init__(self, table: SpanTable) -> None:
        self.table = table
        # Python's numbers: bisecting them is quicker than asking numpy, and no sum of them overflows.
        self._ends: list[int] = np.cumsum(table[:, _LENGTH], dtype=np.int64).tolist()
        self.size_bytes = self._ends[-1] if self._ends else 0

    @classmethod
    def unpack(cls, data: bytes, size_bytes: int) -> Spans:
        """Spans of `size_bytes` in all from a peer's bytes.

        Raises `ValueError` for anything but 1 to `MAX_SPANS` spans of addresses that can be, none empty, that add up to
        `size_bytes`.
        """
        count, rest = divmod(len(data), SPAN_BYTES)
        if rest or not 1 <= count <= MAX_SPANS:
            raise ValueError(f"{len(data)} bytes of spans")
        table = np.frombuffer(data, dtype="<u8").reshape(count, 2)
        if not table[:, _LENGTH].all() or int(table[:, _LENGTH].max()) > size_bytes:
            raise ValueError("a span that is empty or too long")
        if int(table[:, _ADDRESS].max()) > _HIGHEST_ADDRESS - size_bytes:
            raise ValueError("a span beyond the end of memory")
        spans = cls(table)
        if spans.size_bytes != size_bytes:
            raise ValueError(f"spans of {spans.size_bytes} bytes for {size_bytes}")
        return spans

    def pack(self) -> bytes:
        """Inverse of `unpack`."""
        return self.table.astype("<u8", copy=False).tobytes()

    def __len__(self) -> int:
        return len(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and np.array_equal(self.table, other.table)

    __hash__ = None  # type: ignore[assignment]  # tables can change

    def cut(self, start_bytes: int, length_bytes: int, max_spans: int = MAX_SPANS) -> Spans:
        """Bytes [start, start + length), cut short after `max_spans` spans; length >= 1."""
        end_bytes = start_bytes + length_bytes
        assert 0 <= start_bytes < end_bytes <= self.size_bytes
        if length_bytes == self.size_bytes and len(self.table) <= max_spans:
            return self
        first = bisect_right(self._ends, start_bytes)
        last = bisect_right(self._ends, end_bytes - 1)
        table = self.table[first : min(last + 1, first + max_spans)].copy()
        if last < first + max_spans:
            table[-1, _LENGTH] -= self._ends[last] - end_bytes
        skipped = start_bytes - (self._ends[first - 1] if first else 0)
        table[0, _ADDRESS] += skipped
        table[0, _LENGTH] -= skipped
        return Spans(table)


class MemoryRun:
    """Bytes of one buffer of this process, in pieces: `spans` of `memory` (format "B", one dimension)."""

    __slots__ = ("_base", "_memory", "spans")

    def __init__(self, memory: memoryview, starts: Sequence[int] | npt.NDArray[Any], lengths: Any) -> None:
        """`lengths[i]` bytes from byte `starts[i]` of `memory` on, for each i."""
        self._memory = memory
        self._base = address_of(memory)
        table = np.empty((len(starts), 2), dtype=np.uint64)
        table[:, _ADDRESS] = starts
        table[:, _ADDRESS] += self._base
        table[:, _LENGTH] = lengths
        self.spans = Spans(table)

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return self.spans.size_bytes

    def views(self, part: Spans) -> Iterator[memoryview]:
        """The bytes at `part`, a cut of this run's spans."""
        starts = (part.table[:, _ADDRESS] - self._base).tolist()
        ends = (part.table[:, _ADDRESS] - self._base + part.table[:, _LENGTH]).tolist()
        return map(self._memory.__getitem__, map(slice, starts, ends))


class Gathered:
    """Cuts of runs one after the other, of several layers perhaps: what one system call reads and one sum covers."""

    def __init__(self) -> None:
        self._parts: list[tuple[MemoryRun, Spans]] = []
        self.size_bytes = 0
        self.count = 0

    def add(self, run: MemoryRun, part: Spans) -> None:
        """`part`, a cut of the spans of `run`, follows."""
        self._parts.append((run, part))
        self.size_bytes += part.size_bytes
        self.count += len(part)

    @property
    def spans(self) -> Spans:
        """All of it."""
        if len(self._parts) == 1:
            return self._parts[0][1]
        return Spans(np.concatenate([part.table for _, part in self._parts]))

    def checksum(self) -> int:
        """`wide_checksum` of all of it, as it is now."""
        views = chain.from_iterable(run.views(part) for run, part in self._parts)
        return wide_checksum(next(views)) if self.count == 1 else wide_scattered_checksum(views)


def address_of(memory: memoryview) -> int:
    """Where `memory` (contiguous, perhaps read-only) begins in this process; 0 for none."""
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data) if len(memory) else 0
