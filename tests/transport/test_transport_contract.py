"""What every KV transport must do, whatever carries the bytes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.core.ids import WorkerLife
from common.errors import Reason, WireError
from common.transport.base import MAX_TRAILER_BYTES
from common.transport.frames import GOOD_DATA_BYTES, MAX_DATA_BYTES
from tests.transport.conftest import Pair
from tests.transport.doubles import AGE_S, LAYOUT, OWNER, MemorySink, attempt, random_layers

MIB = 1 << 20


@pytest.mark.parametrize(
    ("layers", "layer_bytes", "owner_cut", "sink_cut"),
    [
        (1, 1, {}, {}),
        (1, 2048, {}, {}),
        (40, 33, {"piece_bytes": 11, "gap_bytes": 5}, {"piece_bytes": 3, "gap_bytes": 1}),
        (4, 3 * 2048, {"piece_bytes": 2048, "gap_bytes": 2048}, {}),
        (3, 5000 * 64, {"piece_bytes": 64, "gap_bytes": 64}, {"piece_bytes": 128, "gap_bytes": 7}),
        (2, 2 * MIB + 17, {"piece_bytes": 500_000, "gap_bytes": 1}, {"piece_bytes": 131_072, "gap_bytes": 3}),
        (2, MAX_DATA_BYTES, {}, {}),
    ],
)
async def test_bytes_arrive_in_wire_order(pair: Pair, layers, layer_bytes, owner_cut, sink_cut) -> None:
    data = random_layers(layers, layer_bytes)
    lease = pair.provider.lend(data, **owner_cut)
    sink = MemorySink(layers, layer_bytes, **sink_cut)
    transfer = (await pair.fetch(sink)).transfer
    assert sink.content == data
    assert sink.asked == list(range(layers))
    assert sink.completed == list(enumerate(data))
    assert transfer.transfer_bytes == layers * layer_bytes
    assert transfer.transfer_s >= 0.0
    assert await lease.until_closed() == [True]


@pytest.mark.parametrize("trailer", [b"", b"eight positions", bytes(MAX_TRAILER_BYTES)])
async def test_the_trailer_comes_after_the_last_layer(pair: Pair, trailer: bytes) -> None:
    lease = pair.provider.lend(random_layers(2, 64))
    lease.trailer_data, lease.trailer_gate = trailer, asyncio.Event()
    sink = MemorySink(2, 64)
    fetch = asyncio.create_task(pair.fetch(sink))
    await sink.until_full()
    assert [layer for layer, _ in sink.completed] == [0, 1] and not fetch.done()
    lease.trailer_gate.set()
    assert (await fetch).trailer == trailer
    assert await lease.until_closed() == [True]


@pytest.mark.parametrize("layer_bytes", [64, GOOD_DATA_BYTES, 3 * GOOD_DATA_BYTES + 1])
async def test_a_layer_is_complete_before_the_next_is_computed(pair: Pair, layer_bytes: int) -> None:
    """However a reader gathers what comes: it does not wait for what comes only later."""
    data = random_layers(3, layer_bytes)
    lease = pair.provider.lend(data)
    lease.gates = {1: asyncio.Event(), 2: asyncio.Event()}
    lease.trailer_gate = asyncio.Event()
    sink = MemorySink(3, layer_bytes)
    fetch = asyncio.create_task(pair.fetch(sink))
    for layer, gate in enumerate([*lease.gates.values(), lease.trailer_gate]):
        await sink.until_complete(layer)
        gate.set()
    await fetch
    assert sink.content == data


async def test_an_early_reader_waits_for_the_prefill_to_begin(pair: Pair) -> None:
    data = random_layers(2, 64)
    pair.provider.begun = asyncio.Event()
    sink = MemorySink(2, 64)
    early = asyncio.create_task(pair.fetch(sink, early=True))
    await asyncio.sleep(0.05)
    with pytest.raises(WireError) as caught:
        await pair.fetch(MemorySink(2, 64))
    assert caught.value.reason is Reason.KV_NOT_FOUND, "who is not early is told at once"
    assert not early.done()
    pair.provider.lend(data)
    pair.provider.begun.set()
    await early
    assert sink.content == data
    assert [request.early for request in pair.provider.requests] == [False, True]


async def test_an_early_reader_that_gives_up_waiting_is_gone_at_the_owner_too(pair: Pair) -> None:
    pair.provider.begun = asyncio.Event()
    with pytest.raises(WireError) as caught:
        await pair.fetch(MemorySink(1, 8), early=True, timeout_s=0.1)
    assert caught.value.reason in {Reason.PEER_LOST, Reason.KV_NOT_FOUND}
    cancelled = asyncio.create_task(pair.fetch(MemorySink(1, 8), early=True))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    # The owner has noticed by the time it stops: nothing is opened when the prefill begins.
    await asyncio.sleep(0.05)
    pair.provider.lend(random_layers(1, 8))
    pair.provider.begun.set()
    await asyncio.sleep(0.05)
    assert not pair.provider.requests


@pytest.mark.parametrize(("age_s", "all_of_it"), [(AGE_S, True), (0.0, False)])
async def test_what_the_prefill_hides_of_a_transfer_is_not_exposed(pair: Pair, age_s: float, all_of_it: bool) -> None:
    lease = pair.provider.lend(random_layers(1, 8))
    lease.age_s = age_s
    transfer = (await pair.fetch(MemorySink(1, 8))).transfer
    assert transfer.exposed_s == (transfer.transfer_s if all_of_it else 0.0)


async def test_nobody_is_warned_of_reads_that_go_well(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.provider.lend(random_layers(2, 64))
    await pair.fetch(MemorySink(2, 64))
    await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_request_names_attempt_owner_layout_and_pages(pair: Pair) -> None:
    pair.provider.lend(random_layers(1, 8))
    await pair.fetch(MemorySink(1, 8))
    (request,) = pair.provider.requests
    assert (request.attempt, request.owner, request.layout_fingerprint, request.pages) == (
        attempt(),
        OWNER,
        LAYOUT,
        1,
    )


@pytest.mark.parametrize("layer_bytes", [100, 3 * MIB])
async def test_layers_are_sent_as_they_are_computed(pair: Pair, layer_bytes: int) -> None:
    data = random_layers(3, layer_bytes)
    lease = pair.provider.lend(data)
    lease.gates[1] = asyncio.Event()
    sink = MemorySink(3, layer_bytes)
    fetch = asyncio.create_task(pair.fetch(sink))
    await lease.until_reached(1)
    assert not lease.reached[2].is_set() and not fetch.done()
    lease.gates[1].set()
    await fetch
    assert sink.content == data


@pytest.mark.parametrize(
    "reason",
    [
        Reason.KV_NOT_FOUND,
        Reason.KV_LEASE_EXPIRED,
        Reason.STALE_INCARNATION,
        Reason.STALE_ATTEMPT,
        Reason.LAYOUT_MISMATCH,
    ],
)
async def test_refusal_keeps_its_reason_and_words(pair: Pair, reason: Reason) -> None:
    pair.provider.refusal = WireError(reason, "said the owner: né")
    sink = MemorySink(1, 8)
    with pytest.raises(WireError) as caught:
        await pair.fetch(sink)
    assert (caught.value.reason, caught.value.message) == (reason, "said the owner: né")
    assert sink.content == [bytes(8)]


async def test_a_bug_in_the_owner_is_internal_and_tells_nothing(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 8))

    def fail(_: int) -> None:
        raise ZeroDivisionError("secret")

    lease.on_check = fail
    with pytest.raises(WireError) as caught:
        await pair.fetch(MemorySink(2, 8))
    assert caught.value.reason is Reason.INTERNAL and "secret" not in caught.value.message
    assert await lease.until_closed() == [False]


@pytest.mark.parametrize("place", ["until_begun", "open_read"])
async def test_a_bug_in_the_provider_is_internal_and_others_are_served(pair: Pair, place: str) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("secret")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pair.provider, place, fail)
        with pytest.raises(WireError) as caught:
            await pair.fetch(MemorySink(1, 8), early=True)
    assert caught.value.reason is Reason.INTERNAL and "secret" not in caught.value.message
    lease = pair.provider.lend(random_layers(1, 8))
    await pair.fetch(MemorySink(1, 8), early=True)
    assert await lease.until_closed() == [True]


@pytest.mark.parametrize(("layers", "layer_bytes"), [(1, 16), (3, 16), (2, 8), (2, 17), (0, 0), (2, 0)])
async def test_sizes_that_differ_are_refused_before_a_byte_is_written(pair: Pair, layers, layer_bytes) -> None:
    lease = pair.provider.lend(random_layers(2, 16))
    sink = MemorySink(layers, layer_bytes)
    with pytest.raises(WireError) as caught:
        await pair.fetch(sink)
    assert caught.value.reason is Reason.LAYOUT_MISMATCH
    assert sink.content == [bytes(layer_bytes)] * layers
    assert await lease.until_closed() == [False]


@pytest.mark.parametrize(("layers", "layer_bytes"), [(0, 0), (2, 0)])
async def test_an_owner_with_nothing_to_send_is_refused(pair: Pair, layers, layer_bytes) -> None:
    lease = pair.provider.lend([b""] * layers)
    with pytest.raises(WireError) as caught:
        await pair.fetch(MemorySink(layers, layer_bytes))
    assert caught.value.reason is Reason.LAYOUT_MISMATCH
    assert await lease.until_closed() == [False]


async def test_a_revoked_lease_ends_a_read_that_waits(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 64))
    lease.gates[1] = asyncio.Event()
    fetch = asyncio.create_task(pair.fetch(MemorySink(2, 64)))
    await lease.until_reached(1)
    lease.revoke(WireError(Reason.KV_NOT_FOUND, "withdrawn"))
    with pytest.raises(WireError) as caught:
        await fetch
    assert caught.value.reason is Reason.KV_NOT_FOUND
    assert await lease.until_closed() == [False]


async def test_a_slow_owner_is_given_up(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 64))
    lease.gates[1] = asyncio.Event()
    with pytest.raises(WireError) as caught:
        await pair.fetch(MemorySink(2, 64), timeout_s=0.2)
    assert caught.value.reason is Reason.PEER_LOST
    assert await lease.until_closed() == [False]


@pytest.mark.parametrize("layer_bytes", [64, 4 * MIB])
async def test_after_a_cancel_nothing_writes_to_the_sink(pair: Pair, layer_bytes: int) -> None:
    lease = pair.provider.lend(random_layers(3, layer_bytes))
    lease.gates[1] = asyncio.Event()
    sink = MemorySink(3, layer_bytes)
    fetch = asyncio.create_task(pair.fetch(sink))
    await lease.until_reached(1)
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    at_cancel = sink.content
    lease.gates[1].set()
    assert await lease.until_closed() == [False]
    await asyncio.sleep(0.05)
    assert sink.content == at_cancel


async def test_cancel_at_every_turn_never_writes_later_and_closes_once(pair: Pair) -> None:
    data = random_layers(4, 40_000)
    for turns in range(40):
        lease = pair.provider.lend(data, turns)
        sink = MemorySink(4, 40_000)
        fetch = asyncio.create_task(pair.fetch(sink, turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        fetch.cancel()
        outcome = (await asyncio.gather(fetch, return_exceptions=True))[0]
        at_end = sink.content
        if lease.opened.is_set():
            await lease.until_closed()
        await asyncio.sleep(0)
        assert sink.content == at_end
        if not isinstance(outcome, BaseException):
            assert at_end == data


async def test_eight_fetches_at_once_do_not_mix(pair: Pair) -> None:
    data = [random_layers(3, MIB + number, seed=number) for number in range(8)]
    leases = [pair.provider.lend(layers, number) for number, layers in enumerate(data)]
    sinks = [MemorySink(3, MIB + number, piece_bytes=4096, gap_bytes=16) for number in range(8)]
    await asyncio.gather(*(pair.fetch(sink, number) for number, sink in enumerate(sinks)))
    assert [sink.content for sink in sinks] == data
    assert [await lease.until_closed() for lease in leases] == [[True]] * 8


async def test_close_peer_ends_only_that_lifes_fetches(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 64))
    lease.gates[1] = asyncio.Event()
    sink = MemorySink(2, 64)
    fetch = asyncio.create_task(pair.fetch(sink))
    await lease.until_reached(1)
    await pair.reader.close_peer(WorkerLife(OWNER.worker_id, OWNER.incarnation + 1))
    assert not fetch.done()
    await pair.reader.close_peer(OWNER)
    at_close = sink.content
    with pytest.raises(WireError) as caught:
        await fetch
    assert caught.value.reason is Reason.PEER_LOST
    lease.gates[1].set()
    assert await lease.until_closed() == [False]
    assert sink.content == at_close


async def test_owner_closing_ends_its_sends(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 64))
    lease.gates[1] = asyncio.Event()
    fetch = asyncio.create_task(pair.fetch(MemorySink(2, 64)))
    await lease.until_reached(1)
    await pair.owner.aclose()
    assert lease.closes == [False]
    with pytest.raises(WireError) as caught:
        await fetch
    assert caught.value.reason is Reason.PEER_LOST
    await pair.owner.aclose()


async def test_reader_closing_ends_its_fetches_and_refuses_more(pair: Pair) -> None:
    lease = pair.provider.lend(random_layers(2, 64))
    lease.gates[1] = asyncio.Event()
    fetch = asyncio.create_task(pair.fetch(MemorySink(2, 64)))
    await lease.until_reached(1)
    await pair.reader.aclose()
    for doomed in (fetch, pair.fetch(MemorySink(2, 64))):
        with pytest.raises(WireError) as caught:
            await doomed
        assert caught.value.reason is Reason.PEER_LOST
    assert await lease.until_closed() == [False]


async def test_a_refusal_of_a_read_that_is_over_does_not_answer_the_next_one(pair: Pair) -> None:
    """The owner takes its pages back while the acknowledgement is on its way to it, and the next request after that."""
    data = random_layers(2, 64)
    first, second = pair.provider.lend(data, 0), pair.provider.lend(data, 1)
    await pair.fetch(MemorySink(2, 64), 0)
    first.revoke(WireError(Reason.KV_NOT_FOUND, "withdrawn"))
    sink = MemorySink(2, 64)
    await pair.fetch(sink, 1)
    assert sink.content == data and await second.until_closed() == [True]
    assert len(await first.until_closed()) == 1


async def test_nobody_listens(pair: Pair) -> None:
    await pair.owner.aclose()
    with pytest.raises(WireError) as caught:
        await pair.fetch(MemorySink(1, 8))
    assert caught.value.reason is Reason.PEER_LOST


async def test_the_same_lease_can_be_read_again_after_a_failure(pair: Pair) -> None:
    data = random_layers(2, 64)
    first = pair.provider.lend(data)
    first.gates[1] = asyncio.Event()
    with pytest.raises(WireError):
        await pair.fetch(MemorySink(2, 64), timeout_s=0.1)
    if first.opened.is_set():  # a slow machine may take longer than that to connect
        await first.until_closed()
    second = pair.provider.lend(data)
    sink = MemorySink(2, 64)
    await pair.fetch(sink)
    assert sink.content == data and await second.until_closed() == [True]


async def test_a_watched_listener_is_there_until_it_is_closed(pair: Pair) -> None:
    watching = asyncio.create_task(pair.owner.watch())
    lease = pair.provider.lend(random_layers(1, 64))
    await pair.fetch(MemorySink(1, 64))
    assert await lease.until_closed() == [True]
    assert not watching.done()
    await pair.owner.aclose()
    await watching
    # A transport that only reads serves nothing.
    await pair.reader.watch()
