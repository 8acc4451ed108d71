"""A run of views behaves like the bytes they hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.transport.byte_run import ByteRun
from common.transport.checksum import payload_checksum


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=12), st.data())
def test_slice_checksum_and_write_agree_with_joined_bytes(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    run = ByteRun([memoryview(bytearray(piece)) for piece in pieces])
    assert run.size_bytes == len(whole)
    if not whole:
        return
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, len(whole) - start))
    assert b"".join(run.slice(start, length)) == whole[start : start + length]
    assert run.checksum(start, length) == payload_checksum(whole[start : start + length])
    limit = data.draw(st.integers(1, 4))
    cut = run.slice(start, length, limit)
    assert 1 <= len(cut) <= limit and whole[start : start + length].startswith(b"".join(cut))
    assert any(cut), "a cut slice still makes progress"
    new = data.draw(st.binary(min_size=length, max_size=length))
    run.write(start, new)
    assert b"".join(run.slice(0, run.size_bytes)) == whole[:start] + new + whole[start + length :]


def test_views_are_not_copies() -> None:
    memory = bytearray(8)
    run = ByteRun([memoryview(memory)[2:6]])
    run.slice(1, 2)[0][:] = b"ab"
    assert memory == b"\0\0\0ab\0\0\0"


def test_wide_items_are_refused() -> None:
    with pytest.raises(AssertionError):
        ByteRun([memoryview(bytearray(8)).cast("I")])
