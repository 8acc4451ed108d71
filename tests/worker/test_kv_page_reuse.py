"""Pages that were promised to one fetch and given to another request: bytes that come late reach nobody."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from common.core.ids import RequestId, Role
from common.core.params import ConfidenceQuota
from common.core.work import RemoteKv
from tests.engine.checkpoints import GOLDEN_DIR
from tests.engine.runs import request
from tests.worker.harness import (
    Outcome,
    block_work,
    local_token_ids,
    read_decode,
    run_colocated,
    run_disaggregated,
    source_after,
    workers,
)
from tests.worker.holding_proxy import HoldingProxy
from tests.worker.waiting import PATIENCE_S, eventually

ABORTED = request(tuple(range(1, 40)), strategy=ConfidenceQuota(2))
OTHER = request(tuple(range(140, 101, -1)), strategy=ConfidenceQuota(2), request_id=RequestId("other"))
CANVAS_PAGES = 5
FRAMES = 2
"""What gets through. tcp: that the owner accepts, and a layer; ucx: introduction and acceptance, UCX does the rest;
auto: offer and acceptance, so that the reader has yet to hear where the bytes lie."""


@pytest.mark.parametrize("kv_transport", ["tcp", "ucx", "auto"])
@pytest.mark.parametrize("fetches", [False, True], ids=["prefills", "fetches"])
async def test_a_request_on_the_pages_of_an_aborted_fetch_gets_what_it_gets_alone(
    kv_transport: str, fetches: bool
) -> None:
    """`OTHER` needs every page that the decode worker has, while bytes for the same pages wait on their way."""
    async with workers(
        Role.PREFILL, Role.DECODE, kv_transport=kv_transport, kv_pages_of={Role.DECODE: CANVAS_PAGES}
    ) as (prefill, decode):
        work = block_work(ABORTED)
        source = source_after(work, await prefill.request_prefill(work))
        assert isinstance(source, RemoteKv) and source.handle.pages == CANVAS_PAGES
        async with HoldingProxy(source.handle.address, frames=FRAMES) as proxy:
            detour = dataclasses.replace(source.handle, address=proxy.address)
            aborted = decode.request_decode(work, dataclasses.replace(source, handle=detour))
            async with asyncio.timeout(PATIENCE_S):
                await proxy.holds.wait()
            assert decode.app.view().free_pages == 0 and decode.app.view().fetching
            aborted.cancel()
            await eventually(lambda: decode.app.view().idle)

            decode.engine.hold()
            other = asyncio.create_task(
                run_disaggregated(prefill, decode, OTHER) if fetches else run_colocated(decode, OTHER)
            )
            await decode.engine.until_held()
            await decode.engine.step_once()
            assert decode.app.view().free_pages == 0, "the same pages, and in use"
            pool = decode.engine.pool.tensor
            before = pool.clone()
            proxy.release()
            async with asyncio.timeout(PATIENCE_S):
                await proxy.over.wait()
            assert torch.equal(pool, before), "nothing runs, so nothing changes"
            decode.engine.release()
            outcome = await other
        # The same K/V is still to be had, by the attempt that it was made for.
        late = Outcome()
        await read_decode(decode.request_decode(work, source), late)
    alone = local_token_ids(GOLDEN_DIR / "llada-gqa", [OTHER, ABORTED])
    assert outcome.token_ids == alone[0]
    assert all(alone[1][position] == token for position, token in late.tokens.items()) and late.tokens
