"""The paged pool: slots, exact gathers, byte runs in wire order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.core.kv_layout import KvLayout
from common.engine.kv_pool import KvPool
from common.errors import ConfigError

LAYOUT = KvLayout(
    model_id="m", weights_fingerprint="w", dtype="float32", page_size_tokens=4, n_layers=3, n_kv_heads=2, head_dim=8
)
CPU = torch.device("cpu")


def numbered_pool(num_pages: int = 6, dtype: str = "float32") -> KvPool:
    layout = KvLayout(
        model_id="m", weights_fingerprint="w", dtype=dtype, page_size_tokens=4, n_layers=3, n_kv_heads=2, head_dim=8
    )
    pool = KvPool(layout=layout, num_pages=num_pages, device=CPU)
    pool.tensor.copy_(torch.arange(pool.tensor.numel()).view(pool.tensor.shape))
    return pool


def test_sizes():
    pool = KvPool(layout=LAYOUT, num_pages=6, device=CPU)
    assert pool.tensor.shape == (3, 2, 6, 4, 2, 8)
    assert LAYOUT.page_bytes_per_layer == 2 * 4 * 2 * 8 * 4
    assert pool.page_bytes == 3 * LAYOUT.page_bytes_per_layer == pool.tensor[:, :, 0].numel() * 4
    assert LAYOUT.block_bytes(6) == pool.tensor.numel() * 4
    assert [pool.pages_for(tokens) for tokens in (1, 4, 5, 24)] == [1, 1, 2, 6]


def test_slots_follow_the_pages():
    """Invariant 18: page size 4, positions 1, 2, 5, 6 on pages 0 and 3 give offsets 1, 2 of each."""
    slots = KvPool(layout=LAYOUT, num_pages=6, device=CPU).slots_of([0, 3], 7).tolist()
    assert slots == [0, 1, 2, 3, 12, 13, 14]
    assert [(slots[position] // 4, slots[position] % 4) for position in (1, 2, 5, 6)] == [
        (0, 1),
        (0, 2),
        (3, 1),
        (3, 2),
    ]


@pytest.mark.parametrize(("page_ids", "match"), [([0], "1 pages"), ([1, 1], "twice"), ([0, 6], "beyond")])
def test_bad_pages_are_a_bug(page_ids, match):
    with pytest.raises(AssertionError, match=match):
        KvPool(layout=LAYOUT, num_pages=6, device=CPU).slots_of(page_ids, 7)


def test_what_is_written_is_gathered_and_nothing_else_changes():
    pool = KvPool(layout=LAYOUT, num_pages=6, device=CPU)
    slots = pool.slots_of([5, 2], 6)
    keys, values = torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    pool.write(1, slots, keys, values)
    got_keys, got_values = pool.gather(1, slots)
    assert torch.equal(got_keys, keys) and torch.equal(got_values, values)
    assert torch.equal(pool.tensor[1, 0, 5], keys[:4]) and torch.equal(pool.tensor[1, 1, 2, :2], values[4:])
    assert pool.tensor.count_nonzero() == 2 * 6 * 16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_pages_are_read_in_wire_order(dtype):
    pool = numbered_pool(dtype=dtype)
    expected = b"".join(
        pool.tensor[layer, part, page].contiguous().view(torch.uint8).numpy().tobytes()
        for layer in (1, 2)
        for part in (0, 1)
        for page in (4, 0, 1)
    )
    runs = pool.read_pages([4, 0, 1], range(1, 3))
    assert b"".join(runs) == expected
    assert len(expected) == 3 * 2 * pool.layout.page_bytes_per_layer


def test_neighbouring_pages_make_one_run():
    pool = numbered_pool()
    half_page_bytes = LAYOUT.page_bytes_per_layer // 2
    assert [len(run) for run in pool.read_pages([2, 3, 4, 0], range(1))] == 2 * [3 * half_page_bytes, half_page_bytes]
    assert [len(run) for run in pool.read_pages([3, 2], range(1))] == 4 * [half_page_bytes]
    assert pool.read_pages([], range(3)) == []


def test_a_transfer_between_pools_copies_exactly_the_pages():
    source, target = numbered_pool(), KvPool(layout=LAYOUT, num_pages=4, device=CPU)
    buffers = target.writable_runs([3, 0, 1], range(3))
    stream = memoryview(b"".join(source.read_pages([1, 5, 0], range(3))))
    for buffer in buffers:
        buffer[:] = stream[: len(buffer)]
        stream = stream[len(buffer) :]
    target.commit_runs([3, 0, 1], range(3), buffers)
    assert len(stream) == 0
    assert torch.equal(target.tensor[:, :, [3, 0, 1]], source.tensor[:, :, [1, 5, 0]])
    assert target.tensor[:, :, 2].count_nonzero() == 0


def test_reading_copies_nothing():
    pool = numbered_pool()
    (run, _) = pool.read_pages([2], range(1))
    pool.tensor[0, 0, 2].fill_(0.0)
    assert not any(run)


@pytest.mark.parametrize(("pages", "match"), [(0, "num_pages"), (2**50, "num_pages: .* bytes")])
def test_a_pool_that_cannot_be_had_is_refused_by_name(pages, match):
    with pytest.raises(ConfigError, match=match):
        KvPool(layout=LAYOUT, num_pages=pages, device=CPU)


def test_a_pool_in_host_memory_asks_for_huge_pages():
    """Readers of the same machine gain by them. The system's answer is its own; that it was asked is in its tables."""
    pool = KvPool(layout=LAYOUT, num_pages=4096, device=CPU)
    assert pool.host_bytes is not None and not any(pool.host_bytes)
    middle = pool.tensor.data_ptr() + pool.tensor.nbytes // 2
    flags: list[str] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, _, end = name.partition("-")
            inside = int(first, 16) <= middle < int(end, 16)
        elif name == "VmFlags:" and inside:
            flags = rest.split()
    assert ("hg" in flags) == Path("/sys/kernel/mm/transparent_hugepage").exists()
