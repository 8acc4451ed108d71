"""Where bytes go between pool and carrier: long contiguous pages are their own buffers, others share staging memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from common.clock import ManualClock
from common.core.kv_layout import KvLayout
from common.engine.kv_pool import KvPool
from common.transport.memory_run import address_of
from common.worker import kv_staging
from common.worker.kv_staging import PART_BYTES, KvStaging
from common.worker.pool_lease import LayerProgress, PoolLease
from common.worker.pool_sink import PoolSink

LAYOUT = KvLayout(
    model_id="m",
    weights_fingerprint="w",
    dtype="bfloat16",
    page_size_tokens=16,
    n_layers=2,
    n_kv_heads=8,
    head_dim=256,
)
LONG = range(3, 3 + PART_BYTES // LAYOUT.page_bytes_per_layer)
"""As many pages, side by side, as are worth a part of their own."""
PAGES = 2 * len(LONG)


@pytest.fixture
def staging() -> KvStaging:
    pool = KvPool(layout=LAYOUT, num_pages=PAGES, device=torch.device("cpu"))
    pool.tensor.normal_()
    return KvStaging(pool)


def runs_of(staging: KvStaging, page_ids: Sequence[int], layer: int) -> list[tuple[int, int]]:
    """Address and length of those pages' bytes in the pool."""
    return [(run.data_ptr(), run.numel()) for run in staging.pool.byte_runs(page_ids, range(layer, layer + 1))]


def places(views: Sequence[memoryview]) -> list[tuple[int, int]]:
    return [(address_of(view), len(view)) for view in views]


def lease_of(staging: KvStaging, page_ids: Sequence[int]) -> PoolLease:
    progress = LayerProgress(LAYOUT.n_layers, ManualClock())
    progress.note_layers()
    return PoolLease(
        staging=staging, page_ids=page_ids, progress=progress, check=lambda: None, on_closed=lambda _: None
    )


async def test_long_pages_side_by_side_are_received_into_and_sent_from_where_they_lie(staging: KvStaging) -> None:
    lease = lease_of(staging, LONG)
    with PoolSink(staging, LONG) as sink:
        for layer in range(LAYOUT.n_layers):
            await lease.wait_layer(layer)
            lies = runs_of(staging, LONG, layer)
            assert places(lease.views(layer)) == lies and places(sink.views(layer)) == lies
    lease.close(delivered=True)


@pytest.mark.parametrize("page_ids", [LONG[1:], range(0, PAGES, 2)], ids=["shorter", "scattered"])
async def test_other_pages_are_staged_in_memory_that_the_next_transfer_takes_again(
    staging: KvStaging, page_ids: Sequence[int]
) -> None:
    transfers: list[list[memoryview]] = []
    for _ in range(2):
        with PoolSink(staging, page_ids) as sink:
            transfers.append([view for layer in range(LAYOUT.n_layers) for view in sink.views(layer)])
    lease = lease_of(staging, page_ids)
    transfers.append([])
    for layer in range(LAYOUT.n_layers):
        await lease.wait_layer(layer)
        transfers[-1] += lease.views(layer)
    lease.close(delivered=True)
    # Nothing else can lie there: `transfers` keeps all of it.
    first, *others = (sorted(places(views)) for views in transfers)
    assert len(first) == LAYOUT.n_layers and others == [first] * 2
    pool = staging.pool.host_bytes
    assert pool is not None and not any(0 <= at - address_of(pool) < len(pool) for at, _ in first)


def test_no_more_than_its_limit_is_kept(staging: KvStaging, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = staging.take(4), staging.take(4)
    monkeypatch.setattr(kv_staging, "KEPT_BYTES", first.memory.numel())
    staging.give_back(first)
    staging.give_back(second)
    assert staging.take(4).memory is first.memory
    assert staging.take(4).memory is not second.memory
