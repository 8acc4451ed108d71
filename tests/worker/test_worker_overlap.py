"""Two real workers: each layer's K/V leaves while the prefill that computes it still runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from common.core.ids import Role
from common.core.params import ConfidenceQuota
from common.core.work import KvHandle, RemoteKv
from tests.engine.checkpoints import GOLDEN_DIR
from tests.engine.runs import request
from tests.metrics.measured import Growth
from tests.worker.harness import Outcome, RunningWorker, block_work, local_token_ids, read_decode, workers
from tests.worker.waiting import PATIENCE_S

SPEC = request(tuple(range(1, 40)), strategy=ConfidenceQuota(2))
LEASE_S = 60.0


def handle_before(prefill: RunningWorker) -> KvHandle:
    """What the scheduler tells an early reader of the K/V that `prefill` is to compute for `SPEC`."""
    spec, work = prefill.app.spec(), block_work(SPEC)
    return KvHandle(
        attempt=work.attempt,
        owner=spec.life,
        transport=spec.kv_transport,
        address=spec.kv_address,
        layout_fingerprint=spec.layout_fingerprint,
        canvas_tokens=work.canvas_tokens,
        pages=spec.pages_for(work.canvas_tokens),
        lease_s=LEASE_S,
    )


def wait_for_reader(prefill: RunningWorker, has: Callable[[int], bool]) -> list[int]:
    """Let every layer of a prefill last until its reader `has` it; returns where those that it got so are noted."""
    arrived: list[int] = []
    given_up_s = time.monotonic() + PATIENCE_S

    def on_computed(layer: int, tell: Callable[[int], None]) -> None:
        # Told again and again: whoever is to hear of it may come late.
        while not has(layer) and time.monotonic() < given_up_s:
            tell(layer)
            time.sleep(0.002)
        if has(layer):
            arrived.append(layer)

    prefill.engine.on_computed = on_computed
    return arrived


@pytest.mark.parametrize(("kv_transport", "path"), [("tcp", "tcp"), ("ucx", "ucx"), ("auto", "direct")])
async def test_a_decode_worker_has_each_layer_before_the_next_is_computed(kv_transport: str, path: str) -> None:
    growth = Growth()
    async with workers(Role.PREFILL, Role.DECODE, kv_transport=kv_transport) as (prefill, decode):
        pool = decode.engine.pool.tensor
        pool.zero_()
        arrived = wait_for_reader(prefill, lambda layer: bool(pool[layer].any()))
        work, outcome = block_work(SPEC), Outcome()
        reading = asyncio.create_task(
            read_decode(decode.request_decode(work, RemoteKv(handle=handle_before(prefill), first=None)), outcome)
        )
        response = await prefill.request_prefill(work)
        assert arrived == list(range(len(pool)))
        outcome.reveal(response.first)
        await reading
    assert outcome.token_ids == local_token_ids(GOLDEN_DIR / "llada-gqa", [SPEC])[0]
    assert growth.of("sangam_kv_transfer_bytes_total", path=path)
    assert growth.of("sangam_kv_transfer_exposed_s", overlap="yes") and not growth.of(
        "sangam_kv_transfer_exposed_s", overlap="no"
    )
