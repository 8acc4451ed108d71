"""Moving K/V keeps the event loop free: no callback works for long, at either end, however large the transfer."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch

from common.clock import MonotonicClock
from common.core.kv_layout import KvLayout
from common.engine.kv_pool import KvPool
from common.transport.base import KvTransport
from common.transport.direct import DirectTransport
from common.transport.tcp import TcpTransport
from common.transport.ucx import UcxTransport
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging
from common.worker.pool_sink import PoolSink
from tests.worker.kv_owner import ATTEMPT, FIRST, LIFE, handle

LONGEST_S = 0.005
ROUNDS = 3
PAGES = 64
LAYOUT = KvLayout(
    model_id="m",
    weights_fingerprint="w",
    dtype="bfloat16",
    page_size_tokens=16,
    n_layers=8,
    n_kv_heads=8,
    head_dim=256,
)
"""1 MiB a page over all layers, and 8 MiB a layer of all pages: too long for staging when they lie side by side."""
CANVAS_TOKENS = PAGES * LAYOUT.page_size_tokens

KINDS: dict[str, Callable[[], KvTransport]] = {
    "direct": DirectTransport,
    "tcp": TcpTransport,
    "ucx": UcxTransport,
    "ucx-tcp": lambda: UcxTransport(carriers="tcp,self"),
}


class LoopWatch:
    """What each callback of the event loop costs, in CPU time of the loop's thread: no other process can change it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._costs: list[tuple[float, str]] = []
        run = asyncio.Handle._run  # the one place through which every callback goes

        def watched(handle: asyncio.Handle) -> None:
            started_s = time.thread_time()
            run(handle)
            self._costs.append((time.thread_time() - started_s, str(handle)))

        monkeypatch.setattr(asyncio.Handle, "_run", watched)

    async def begin(self) -> None:
        """Count from now on: the callback that is running is the test's own."""
        await asyncio.sleep(0)
        self._costs.clear()

    def longest(self) -> tuple[float, str]:
        """Seconds and callback of the longest so far."""
        return max(self._costs)


@pytest.fixture
def nothing_to_collect() -> Iterator[None]:
    """As in a worker: what stands is not gone over by the garbage collector, which torch alone keeps busy for 85 ms."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def new_pool(seed: int) -> KvPool:
    pool = KvPool(layout=LAYOUT, num_pages=2 * PAGES, device=torch.device("cpu"))
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


@asynccontextmanager
async def ends(kind: str) -> AsyncIterator[tuple[KvTransport, KvTransport]]:
    owner, reader = KINDS[kind](), KINDS[kind]()
    try:
        yield owner, reader
    finally:
        await reader.aclose()
        await owner.aclose()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("step", [1, 2], ids=["side by side", "scattered"])
@pytest.mark.usefixtures("nothing_to_collect")
async def test_no_callback_holds_the_loop_up(kind: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long does so in every round; a cold cache, or who shares the core, in one of them."""
    source, target = new_pool(1), new_pool(2)
    assert LAYOUT.block_bytes(PAGES) >= 64 << 20
    ids = range(0, step * PAGES, step)
    nothing: Callable[[object], None] = lambda _: None  # noqa: E731
    serving = KvServing(
        staging=KvStaging(source),
        clock=MonotonicClock(),
        life=lambda: LIFE,
        on_send_started=nothing,
        on_send_ended=nothing,
        on_delivered=nothing,
    )
    serving.offer(ATTEMPT, ids, CANVAS_TOKENS, MonotonicClock().now() + 60.0)
    serving.first_revealed(ATTEMPT, FIRST)
    staging = KvStaging(target)
    async with ends(kind) as (owner, reader):
        wanted = replace(
            handle(await owner.listen("127.0.0.1", serving), owner),
            layout_fingerprint=LAYOUT.fingerprint,
            canvas_tokens=CANVAS_TOKENS,
            pages=PAGES,
        )
        watch, rounds = LoopWatch(monkeypatch), []
        for _ in range(ROUNDS):
            target.tensor.zero_()
            await watch.begin()
            with PoolSink(staging, ids) as sink:
                await reader.fetch(handle=wanted, sink=sink, timeout_s=60.0)
            rounds.append(watch.longest())
            assert torch.equal(target.tensor[:, :, list(ids)], source.tensor[:, :, list(ids)])
    seconds, callback = min(rounds)
    assert seconds < LONGEST_S, f"{1000 * seconds:.1f} ms in {callback}"
