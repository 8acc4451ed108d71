"""Memory in pieces: cut, named to the kernel, summed, and read out of another process."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from common.transport.memory_run import MAX_SPANS, Gathered, MemoryRun, Spans
from common.transport.process_memory import read_memory, this_machine
from tests.transport.doubles import Scattered


def bytes_at(spans: Spans) -> bytes:
    """What lies there, read the way a peer does."""
    found = memoryview(bytearray(spans.size_bytes))
    read_memory(os.getpid(), MemoryRun(found, [0], [len(found)]).spans, spans)
    return bytes(found)


@given(st.integers(1, 40), st.integers(0, 3), st.data())
def test_a_cut_names_the_bytes_it_should(piece_bytes: int, gap_bytes: int, data: st.DataObject) -> None:
    content = random.Random(piece_bytes).randbytes(data.draw(st.integers(1, 300)))
    layer = Scattered(content, piece_bytes, gap_bytes=gap_bytes)
    start = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(1, len(content) - start))
    most = data.draw(st.integers(1, 5))
    cut = layer.run.spans.cut(start, length, most)
    assert len(cut) <= most and (cut.size_bytes == length or len(cut) == most)
    wanted = content[start : start + cut.size_bytes]
    assert bytes_at(cut) == wanted
    assert b"".join(layer.run.views(cut)) == wanted
    # A cut can be cut again.
    assert bytes_at(cut.cut(cut.size_bytes - 1, 1)) == wanted[-1:]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 9)), min_size=1, max_size=4))
def test_what_is_gathered_is_read_and_summed_as_one(layers: list[tuple[bytes, int]]) -> None:
    gathered, wanted = Gathered(), b""
    for content, piece_bytes in layers:
        run = Scattered(content, piece_bytes, gap_bytes=1).run
        gathered.add(run, run.spans.cut(len(content) // 2, len(content) - len(content) // 2))
        wanted += content[len(content) // 2 :]
    assert (gathered.size_bytes, gathered.count) == (len(wanted), len(gathered.spans))
    assert bytes_at(gathered.spans) == wanted
    assert gathered.checksum() == xxh3_64_intdigest(wanted)


@pytest.mark.parametrize(("local_piece", "remote_piece"), [(1, 7), (7, 1), (3, 2), (1, 1), (10_000, 1)])
def test_more_pieces_than_one_call_takes_are_read_in_several(local_piece: int, remote_piece: int) -> None:
    content = random.Random(0).randbytes(5 * MAX_SPANS)
    source = Scattered(content, remote_piece, gap_bytes=1)
    target = Scattered(bytes(len(content)), local_piece, gap_bytes=2)
    read_memory(os.getpid(), target.run.spans, source.run.spans)
    assert target.content == content


def test_nothing_beside_the_pieces_is_written() -> None:
    memory = memoryview(bytearray(b"\xaa" * 64))
    target, source = MemoryRun(memory, [8, 40], [4, 4]), Scattered(b"01234567", 3, gap_bytes=1)
    read_memory(os.getpid(), target.spans, source.run.spans)
    assert bytes(memory) == b"\xaa" * 8 + b"0123" + b"\xaa" * 28 + b"4567" + b"\xaa" * 20


def test_memory_that_is_not_there_cannot_be_read() -> None:
    found = MemoryRun(memoryview(bytearray(32)), [0], [32])
    content = Scattered(bytes(16), 16, gap_bytes=0)
    table = np.concatenate([content.run.spans.table, np.array([[4096, 16]], dtype=np.uint64)])
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        read_memory(os.getpid(), found.spans, Spans(table))


def test_a_process_that_is_not_there_cannot_be_read() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = MemoryRun(memoryview(bytearray(8)), [0], [8])
    with pytest.raises(ProcessLookupError):
        read_memory(ended.pid, found.spans, found.spans)


def test_processes_of_one_machine_agree_on_it() -> None:
    program = "from common.transport.process_memory import this_machine; print(this_machine())"
    other = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        text=True,
        capture_output=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert this_machine() is not None and other.stdout.strip() == str(this_machine())
