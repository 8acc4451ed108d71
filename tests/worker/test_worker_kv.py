"""K/V between workers: who holds pages when, and what happens when a side goes away."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import grpc.aio
import pytest

from common.core.ids import Role, WorkerId, WorkerLife
from common.core.params import ConfidenceQuota
from common.core.work import RemoteKv
from common.errors import Reason
from common.rpc.convert import block_attempt_from_proto, worker_life_to_proto
from common.rpc.status import wire_error
from sangam.v1 import scheduler_pb2
from tests.engine.checkpoints import GOLDEN_DIR
from tests.engine.runs import random_request, request
from tests.worker.harness import (
    PAGES,
    Outcome,
    block_work,
    local_token_ids,
    read_decode,
    run_colocated,
    run_disaggregated,
    scheduler_of,
    source_after,
    workers,
)
from tests.worker.registry_double import start_registry
from tests.worker.waiting import PATIENCE_S, eventually

SPEC = request(tuple(range(1, 40)), strategy=ConfidenceQuota(4))
WORK = block_work(SPEC)


async def reason_of(call: object) -> Reason:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_decode(call, Outcome())
    return wire_error(caught.value).reason


async def test_the_prefill_side_is_free_once_the_decode_side_has_the_pages() -> None:
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        response = await prefill.request_prefill(WORK)
        assert prefill.app.view().free_pages == PAGES - response.kv.pages
        assert response.kv.pages == 5
        decode.engine.hold()
        call = decode.request_decode(WORK, source_after(WORK, response))
        received = await call.read()
        # 3 layers of K and V, 5 pages of 16 positions, 2 heads of 16 float32.
        assert received.events[0].kv_received.transfer_bytes == 3 * 2 * 5 * 16 * 2 * 16 * 4
        await eventually(lambda: prefill.app.view().idle)
        assert decode.app.view().free_pages == PAGES - 5
        decode.engine.release()
        await read_decode(call, Outcome())
        assert decode.app.view().idle


async def test_a_refused_repetition_of_a_prefill_leaves_the_retained_kv_alone() -> None:
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        response = await prefill.request_prefill(WORK)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await prefill.request_prefill(WORK)
        assert wire_error(caught.value).reason is Reason.STALE_ATTEMPT
        assert prefill.app.view().retained == (WORK.attempt,)
        outcome = Outcome()
        await read_decode(decode.request_decode(WORK, source_after(WORK, response)), outcome)
        assert len(outcome.tokens) == 28, "all but the four that the prefill's own step revealed"


async def test_kv_that_was_given_up_cannot_be_had() -> None:
    async with workers(Role.PREFILL, Role.DECODE, kv_lease_s=0.05) as (prefill, decode):
        source = source_after(WORK, await prefill.request_prefill(WORK))
        await eventually(lambda: prefill.app.view().idle)
        assert isinstance(source, RemoteKv)
        # A reader gives up when the lease it was told of is over; this one has the patience to hear the answer.
        patient = dataclasses.replace(source, handle=dataclasses.replace(source.handle, lease_s=PATIENCE_S))
        assert await reason_of(decode.request_decode(WORK, patient)) is Reason.KV_NOT_FOUND
        assert decode.app.view().idle


async def test_kv_of_an_earlier_life_cannot_be_had() -> None:
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        source = source_after(WORK, await prefill.request_prefill(WORK))
        scheduler = scheduler_of(prefill).scheduler
        scheduler.end_life(prefill.app.life)
        await eventually(lambda: len(scheduler.registered) == 3)
        assert prefill.app.view().idle
        assert await reason_of(decode.request_decode(WORK, source)) is Reason.STALE_INCARNATION


async def test_a_fetch_from_a_silent_owner_ends_with_its_call_or_with_the_owner() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    owner = WorkerLife(WorkerId("silent"), 3)
    # Over tcp nothing but the lease bounds an owner's silence: there is no introduction.
    async with workers(Role.PREFILL, Role.DECODE, kv_transport="tcp") as (prefill, decode):
        source = source_after(WORK, await prefill.request_prefill(WORK))
        assert isinstance(source, RemoteKv)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        source = dataclasses.replace(
            source, handle=dataclasses.replace(source.handle, owner=owner, address=address, lease_s=60.0)
        )
        cancelled = decode.request_decode(WORK, source)
        await eventually(lambda: bool(decode.app.view().fetching))
        cancelled.cancel()
        await eventually(lambda: decode.app.view().idle)

        orphaned = decode.request_decode(WORK, source)
        await eventually(lambda: bool(decode.app.view().fetching))
        lost = scheduler_pb2.HeartbeatResponse(lost_peers=[worker_life_to_proto(owner)])
        scheduler_of(decode).scheduler.order("decode-0", lost)
        # Without that order the fetch would wait for its lease to end.
        async with asyncio.timeout(PATIENCE_S):
            assert await reason_of(orphaned) is Reason.PEER_LOST
        assert decode.app.view().idle
        await prefill.request_release(WORK)
    silent.close()
    await silent.wait_closed()


async def test_a_draining_prefill_worker_waits_until_its_kv_has_gone() -> None:
    async with workers(Role.PREFILL, Role.DECODE) as (prefill, decode):
        source = source_after(WORK, await prefill.request_prefill(WORK))
        prefill.stop.set()
        await scheduler_of(prefill).scheduler.until(lambda: scheduler_of(prefill).scheduler.heartbeats[-1].draining)
        assert not prefill.task.done()
        outcome = Outcome()
        await read_decode(decode.request_decode(WORK, source), outcome)
        await prefill.task
        assert len(outcome.tokens) == 28, "all but the four that the prefill's own step revealed"


async def test_the_registry_follows_what_is_retained() -> None:
    registry, server, address = await start_registry()
    async with workers(Role.PREFILL, Role.DECODE, kv_store_address=address) as (prefill, decode):
        response = await prefill.request_prefill(WORK)
        attempt = block_attempt_from_proto(response.kv.attempt)
        await eventually(lambda: registry.entries == {attempt})
        await read_decode(decode.request_decode(WORK, source_after(WORK, response)), Outcome())
        await eventually(lambda: not registry.entries)
        assert registry.released_by == {prefill.app.life.incarnation}
    await server.stop(0)


async def test_many_unequal_requests_at_once_get_what_each_gets_alone() -> None:
    rng = random.Random(11)
    specs = [random_request(rng, f"r{index}", vocab=500) for index in range(24)]
    async with workers(Role.PREFILL, Role.DECODE, kv_pages=600) as (prefill, decode):
        outcomes = await asyncio.gather(
            *(
                run_colocated(decode, spec) if index % 3 == 0 else run_disaggregated(prefill, decode, spec)
                for index, spec in enumerate(specs)
            )
        )
        iterations = decode.app.view().iterations
    assert [outcome.token_ids for outcome in outcomes] == local_token_ids(GOLDEN_DIR / "llada-gqa", specs)
    assert iterations < sum(outcome.decode_forwards for outcome in outcomes), "they did share forwards"
