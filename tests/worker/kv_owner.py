"""An owner of K/V: a serving over a pool of its own, what it offers, and what a reader asks it for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
import torch

from common.clock import ManualClock
from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.kv_layout import KvLayout
from common.core.work import KvHandle
from common.engine.kv_pool import KvPool
from common.errors import Reason, WireError
from common.transport.base import KvReadRequest, KvTransport
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging

LAYOUT = KvLayout(
    model_id="m", weights_fingerprint="w", dtype="bfloat16", page_size_tokens=4, n_layers=3, n_kv_heads=2, head_dim=8
)
PAGES, CANVAS_TOKENS, LEASE_S = 16, 18, 30.0
OWNER_PAGES, READER_PAGES = (3, 4, 9, 1, 15), (7, 0, 1, 2, 12)
FIRST = b"the first tokens"
LIFE = WorkerLife(WorkerId("p0"), 5)
ATTEMPT = BlockAttempt(RequestId("r"), 2, 1)
REQUEST = KvReadRequest(attempt=ATTEMPT, owner=LIFE, layout_fingerprint=LAYOUT.fingerprint, pages=len(OWNER_PAGES))


def random_pool(seed: int) -> KvPool:
    """A pool whose every page holds bytes of its own."""
    pool = KvPool(layout=LAYOUT, num_pages=PAGES, device=torch.device("cpu"))
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


@dataclass
class Owner:
    """A serving with its pool, clock and life, and a log of what it told the worker."""

    pool: KvPool = field(default_factory=lambda: random_pool(1))
    clock: ManualClock = field(default_factory=ManualClock)
    life: WorkerLife = LIFE
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.idle = asyncio.Event()
        self.serving = KvServing(
            staging=KvStaging(self.pool),
            clock=self.clock,
            life=lambda: self.life,
            on_send_started=lambda attempt: self._note(f"started {attempt}"),
            on_send_ended=lambda attempt: self._note(f"ended {attempt}"),
            on_delivered=lambda attempt: self._note(f"delivered {attempt}"),
        )

    def offer(self, attempt: BlockAttempt = ATTEMPT) -> None:
        """Lend `OWNER_PAGES` for one lease, with what the prefill revealed."""
        self.serving.offer(attempt, OWNER_PAGES, CANVAS_TOKENS, self.clock.now() + LEASE_S)
        self.serving.first_revealed(attempt, FIRST)

    def _note(self, what: str) -> None:
        self.log.append(what)
        if what.startswith("ended"):
            self.idle.set()

    def refusal(self, request: KvReadRequest = REQUEST) -> Reason:
        """Why the serving refuses `request`; fails unless it does, and without a word to the worker."""
        with pytest.raises(WireError) as caught:
            self.serving.open_read(request)
        assert not self.log
        return caught.value.reason


def handle(address: str, transport: KvTransport) -> KvHandle:
    """What the scheduler would tell a reader of the K/V at `address`."""
    return KvHandle(
        attempt=ATTEMPT,
        owner=LIFE,
        transport=transport.name,
        address=address,
        layout_fingerprint=LAYOUT.fingerprint,
        canvas_tokens=CANVAS_TOKENS,
        pages=len(OWNER_PAGES),
        lease_s=LEASE_S,
    )


def assert_moved(source: KvPool, target: KvPool, before: torch.Tensor) -> None:
    """The reader's pages hold the owner's bytes, and no other page changed."""
    assert torch.equal(target.tensor[:, :, list(READER_PAGES)], source.tensor[:, :, list(OWNER_PAGES)])
    others = [page for page in range(PAGES) if page not in READER_PAGES]
    assert torch.equal(target.tensor[:, :, others], before[:, :, others])
