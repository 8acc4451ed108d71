"""The checksum of K/V payloads: XXH3 of xxHash, the quickest hash of its quality."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from xxhash import xxh3_64, xxh3_64_intdigest

_LOW_32_BITS = 0xFFFF_FFFF


def payload_checksum(data: memoryview | bytes) -> int:
    """32-bit checksum of contiguous bytes: the low half of XXH3-64.

    Damage of any kind goes unnoticed once in 2**32. Measured: 30 GB/s out of memory, 55 out of the cache, 20 at 16 KiB,
    where zlib's crc32 makes 4. Long runs are summed without the interpreter's lock.
    """
    return xxh3_64_intdigest(data) & _LOW_32_BITS


def views_checksum(views: Sequence[memoryview]) -> int:
    """`payload_checksum` of the bytes of `views` in a row, without joining them."""
    if len(views) == 1:
        return payload_checksum(views[0])
    hasher = xxh3_64()
    for view in views:
        hasher.update(view)
    return hasher.intdigest() & _LOW_32_BITS


def wide_checksum(data: memoryview) -> int:
    """64-bit checksum of contiguous bytes, XXH3-64: for memory that may change while it is read, where a sum that does
    not match is nothing rare."""
    return xxh3_64_intdigest(data)


def wide_scattered_checksum(views: Iterable[memoryview]) -> int:
    """`wide_checksum` of the bytes of `views` in a row."""
    hasher = xxh3_64()
    deque(map(hasher.update, views), maxlen=0)
    return hasher.intdigest()
