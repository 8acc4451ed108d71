"""Decode workers that fetch K/V while the prefill computes it: when they are chosen, and every way that ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.core import effects as fx
from common.core import events as ev
from common.core.cluster import WorkerSpec
from common.core.ids import RequestId, ServingMode
from common.core.kept_share import MAX_STRATEGIES, KeptShares
from common.core.params import CacheMode, ConfidenceQuota
from common.core.work import FinishReason, RemoteKv, RequestSpec
from common.errors import Reason
from tests.core.samples import SAMPLING, delta, request_spec
from tests.core.stage import Stage, decoder, kinds, only, prefiller, targets

DISAGGREGATED, HYBRID = ServingMode.DISAGGREGATED, ServingMode.HYBRID


def overlapping(*workers: WorkerSpec, mode: ServingMode = DISAGGREGATED, **settings: object) -> Stage:
    """A stage whose blocks are read early; canvases of `request_spec` take 4 pages of the 16 that a worker has."""
    return Stage(mode, *workers, kv_overlap=True, **settings)


def begun(stage: Stage, spec: RequestSpec | None = None) -> tuple[fx.CallPrefill, fx.CallDecode]:
    """A request whose prefill runs and is read early."""
    told = stage.submit(spec or request_spec("r"))
    assert kinds(told) == ["CallPrefill", "CallDecode"]
    return only(told, fx.CallPrefill), only(told, fx.CallDecode)


def finish(stage: Stage, decode: fx.CallDecode) -> fx.PublishBlock:
    """The reader, which has its K/V, decodes the last block of 4."""
    start = decode.work.block_start_position
    stage.stepped(decode, 1, list(range(start + 1, start + 4)))
    return only(stage.completed(decode, 1, FinishReason.LENGTH), fx.PublishBlock)


def test_the_decode_worker_is_chosen_with_the_prefill() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage)
    assert isinstance(decode.source, RemoteKv) and decode.source.early
    handle = decode.source.handle
    assert (handle.attempt, handle.owner, handle.pages) == (prefill.work.attempt, prefill.target, 4)
    assert (handle.transport, handle.address, handle.layout_fingerprint) == ("tcp", "p:2", "layout")
    assert (stage.worker("p").pages_free, stage.worker("d").pages_free) == (12, 12)
    assert stage.worker("d").active_decodes == 1


@pytest.mark.parametrize("prefill_speaks_first", [True, False])
def test_whoever_speaks_first_the_block_goes_on_at_its_reader(prefill_speaks_first: bool) -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    stage.now = 1.0
    if prefill_speaks_first:
        assert kinds(stage.prefilled(prefill, [0])) == ["PublishStep"]
        assert (stage.worker("p").pages_free, stage.worker("p").outstanding_prefill_tokens) == (13, 0)
        stage.now = 1.125
        assert stage.received(decode, delta("r", 0, [0])) == []
    else:
        stage.now = 1.125
        assert kinds(stage.received(decode, delta("r", 0, [0]))) == ["PublishStep"]
        assert stage.worker("p").outstanding_prefill_tokens == 0
        assert stage.prefilled(prefill, [0]) == [], "what the prefill worker says is known"
    assert stage.worker("p").pages_free == 16
    stage.now = 3.0
    placement = finish(stage, decode).placement
    assert (placement.prefill_worker_id, placement.decode_worker_id, placement.attempts) == ("p", "d", 1)
    # The transfer took 0.25 s, of which the prefill hid all but 0.125 s.
    assert (placement.prefill_s, placement.queue_s, placement.decode_s) == (1.0, 0.0, 1.875)
    assert (placement.transfer_s, placement.transfer_exposed_s) == (0.25, 0.125)
    view = stage.core.view()
    assert (view.early_readers, view.early_readers_unused) == (1, 0)
    stage.assert_idle()


def test_a_step_tells_that_the_reader_has_the_kv_once_the_prefill_has_ended() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    stage.prefilled(prefill, [0])
    stage.stepped(decode, 1, [1, 2, 3])
    assert stage.worker("p").pages_free == 16
    stage.completed(decode, 1, FinishReason.LENGTH)
    stage.assert_idle()


def test_a_reader_has_one_lease_from_the_end_of_the_prefill_on() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage)
    assert isinstance(decode.source, RemoteKv) and decode.source.handle.lease_s > 120.0, "two forwards may take long"
    stage.now = 100.0
    stage.prefilled(prefill, [0], lease_s=30.0)
    assert stage.tick(129.9) == []
    told = stage.tick(130.0)
    assert only(told, fx.CancelCall).call_id == decode.call_id
    assert only(told, fx.ReleaseKv).attempt == prefill.work.attempt
    assert only(told, fx.CallPrefill).work.attempt.attempt == 1


def test_the_reader_of_a_block_that_its_prefill_finishes_is_cancelled() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    told = stage.prefill_finished(prefill, [0, 1, 2, 3], FinishReason.LENGTH)
    assert kinds(told) == ["PublishStep", "CancelCall", "PublishBlock", "FinishRequest"]
    assert only(told, fx.CancelCall).call_id == decode.call_id
    placement = only(told, fx.PublishBlock).placement
    assert (placement.decode_worker_id, placement.decode_s, placement.attempts) == (None, 0.0, 1)
    assert stage.fail(decode, Reason.KV_NOT_FOUND) == [], "its own end is no news"
    stage.assert_idle()


def test_a_reader_that_finds_nothing_kept_is_no_failed_attempt() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    assert stage.fail(decode, Reason.KV_NOT_FOUND) == []
    told = stage.prefill_finished(prefill, [0, 1, 2, 3], FinishReason.LENGTH)
    assert kinds(told) == ["PublishStep", "PublishBlock", "FinishRequest"]
    assert only(told, fx.PublishBlock).placement.attempts == 1
    assert stage.core.view().retried_blocks == ()


@pytest.mark.parametrize(
    ("reason", "decodes_at"),
    [
        (Reason.KV_NOT_FOUND, "d"),
        (Reason.KV_LEASE_EXPIRED, "d"),
        (Reason.STALE_ATTEMPT, "d"),
        (Reason.DEADLINE_EXCEEDED, "d"),
        (Reason.NO_KV_PAGES, "e"),
        (Reason.QUEUE_FULL, "e"),
        (Reason.PEER_LOST, "e"),
        (Reason.CANCELLED, "e"),
        (Reason.WORKER_NOT_FOUND, "e"),
        (Reason.KV_CHECKSUM, "e"),
        (Reason.STALE_INCARNATION, "e"),
        (Reason.WORKER_DRAINING, "e"),
        (Reason.LAYOUT_MISMATCH, "e"),
    ],
)
def test_a_failed_reader_costs_nothing_but_its_choice(reason: Reason, decodes_at: str) -> None:
    stage = overlapping(prefiller(), decoder("d", pages=20), decoder("e"))
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    assert decode.target.worker_id == "d"
    assert stage.fail(decode, reason) == []
    assert stage.worker("d").pages_free == 20 and stage.worker("p").pages_free == 13
    again = only(stage.prefilled(prefill, [0]), fx.CallDecode)
    assert (again.target.worker_id, again.work.attempt) == (decodes_at, prefill.work.attempt)
    assert isinstance(again.source, RemoteKv) and again.source.first == delta("r", 0, [0])
    stage.received(again)
    assert finish(stage, again).placement.attempts == 1
    assert stage.core.view().early_readers_unused == 1


def test_a_reader_with_a_bug_ends_the_request() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage)
    told = stage.fail(decode, Reason.INTERNAL)
    assert only(told, fx.CancelCall).call_id == prefill.call_id
    assert only(told, fx.FailRequest).reason is Reason.INTERNAL
    stage.assert_idle()


@pytest.mark.parametrize("says", ["a step", "the end", "K/V without a first step", "K/V with a step of another block"])
def test_a_reader_that_speaks_of_what_it_cannot_have_ends_the_request(says: str) -> None:
    stage = overlapping(prefiller(), decoder())
    _, decode = begun(stage)
    told = {
        "a step": lambda: stage.stepped(decode, 1, [1]),
        "the end": lambda: stage.completed(decode, 1),
        "K/V without a first step": lambda: stage.received(decode),
        "K/V with a step of another block": lambda: stage.received(decode, delta("r", 0, [5])),
    }[says]()
    failure = only(told, fx.FailRequest)
    assert failure.reason is Reason.INTERNAL and "against the rules" in failure.story
    stage.assert_idle()


def test_the_death_of_a_reader_leaves_the_prefill_alone() -> None:
    stage = overlapping(prefiller(), decoder("d", pages=20), decoder("e"))
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    told = stage.lose(decoder("d"))
    assert kinds(told) == ["FenceWorker", "CancelCall"] and only(told, fx.CancelCall).call_id == decode.call_id
    assert stage.worker("p").pages_free == 13
    again = only(stage.prefilled(prefill, [0]), fx.CallDecode)
    assert (again.target.worker_id, again.work.attempt.attempt) == ("e", 0)


def test_the_death_of_the_prefill_worker_cancels_the_reader() -> None:
    stage = overlapping(prefiller("p"), decoder(), prefiller("q"))
    prefill, decode = begun(stage)
    told = stage.lose(prefiller("p"))
    assert {e.call_id for e in told if isinstance(e, fx.CancelCall)} == {prefill.call_id, decode.call_id}
    again, reads = only(told, fx.CallPrefill), only(told, fx.CallDecode)
    assert again.target.worker_id == "q" and again.work.attempt.attempt == reads.work.attempt.attempt == 1
    assert dict(stage.core.view().retried_blocks) == {Reason.PEER_LOST: 1}


def test_a_prefill_that_fails_takes_its_reader_along() -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage)
    told = stage.fail(prefill, Reason.PEER_LOST)
    assert only(told, fx.CancelCall).call_id == decode.call_id
    assert stage.worker("d").pages_free == stage.worker("p").pages_free == 16


def test_a_refused_prefill_is_tried_under_another_name_but_is_the_same_try() -> None:
    stage = overlapping(prefiller("p", pages=20), decoder(), prefiller("q"), max_attempts=1)
    prefill, decode = begun(stage, request_spec("r", max_tokens=4))
    told = stage.fail(prefill, Reason.NO_KV_PAGES)
    # Its worker may not have heard yet that the reader of the old name is cancelled.
    assert only(told, fx.CancelCall).call_id == decode.call_id
    again, reads = only(told, fx.CallPrefill), only(told, fx.CallDecode)
    assert (again.target.worker_id, again.work.attempt.attempt, reads.work.attempt.attempt) == ("q", 1, 1)
    stage.prefilled(again, [0])
    stage.received(reads, delta("r", 0, [0]))
    assert finish(stage, reads).placement.attempts == 1
    stage.assert_idle()


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_the_end_of_a_request_ends_both_calls(how: str) -> None:
    stage = overlapping(prefiller(), decoder())
    prefill, decode = begun(stage, request_spec("r", deadline_s=5.0))
    assert prefill.deadline_s == decode.deadline_s == 5.0
    told = stage.tick(6.0) if how == "deadline" else stage.feed(ev.RequestCancelled(request_id=RequestId("r")))
    assert {e.call_id for e in told if isinstance(e, fx.CancelCall)} == {prefill.call_id, decode.call_id}
    assert only(told, fx.ReleaseKv).attempt == prefill.work.attempt
    stage.assert_idle()


@pytest.mark.parametrize(
    "spec",
    [request_spec("r", cache=CacheMode.NONE), replace(request_spec("r"), idle=True)],
    ids=["no K/V", "idle"],
)
def test_blocks_without_kv_and_idle_ones_are_not_read_early(spec: RequestSpec) -> None:
    assert kinds(overlapping(prefiller(), decoder()).submit(spec)) == ["CallPrefill"]


def test_a_prefill_worker_without_a_data_plane_is_not_read_early() -> None:
    silent = replace(prefiller(), kv_address="")
    assert kinds(overlapping(silent, decoder()).submit(request_spec("r"))) == ["CallPrefill"]


def test_without_overlap_the_decode_is_placed_after_the_prefill() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder(), kv_overlap=False)
    assert kinds(stage.submit(request_spec("r"))) == ["CallPrefill"]


def test_prefills_are_not_read_early_while_many_finish_their_block() -> None:
    """One in 32 counts: four that kept nothing bring the share of the others below 0.9, six others above it again."""
    stage = overlapping(prefiller(pages=64), decoder(pages=64))
    for name in "abcd":
        prefill, _ = begun(stage, request_spec(name, max_tokens=4))
        stage.prefill_finished(prefill, [0, 1, 2, 3], FinishReason.LENGTH)
    for name in "efghij":
        prefill = only(stage.submit(request_spec(name)), fx.CallPrefill)
        assert kinds(stage.prefilled(prefill, [0])) == ["PublishStep", "CallDecode"], "decoded as without overlap"
    begun(stage, request_spec("k"))
    assert stage.core.view().early_readers == 5


def test_prefills_of_one_strategy_tell_nothing_of_those_of_another() -> None:
    stage = overlapping(prefiller(pages=64), decoder(pages=64))
    for name in "abcd":
        prefill, _ = begun(stage, request_spec(name, max_tokens=4))
        stage.prefill_finished(prefill, [0, 1, 2, 3], FinishReason.LENGTH)
    assert kinds(stage.submit(request_spec("e"))) == ["CallPrefill"]
    sampling = replace(SAMPLING, strategy=ConfidenceQuota(1))
    begun(stage, replace(request_spec("f"), sampling=sampling))


def test_the_shares_of_many_strategies_are_not_kept_for_ever() -> None:
    shares = KeptShares(0.9)
    spec = request_spec("r")
    for _ in range(4):
        shares.observe(spec.sampling.strategy, False)
    assert not shares.suffice_for(spec)
    for quota in range(1, MAX_STRATEGIES):
        shares.observe(ConfidenceQuota(quota), True)
    assert not shares.suffice_for(spec)
    shares.observe(ConfidenceQuota(MAX_STRATEGIES), True)
    assert shares.suffice_for(spec)


def test_a_prefill_is_read_from_the_forward_before_its_own_on() -> None:
    """A batch of 32 tokens holds two canvases of 16: the third is read when the first has ended."""
    narrow = replace(prefiller(pages=64), max_prefill_tokens_per_batch=32)
    stage = overlapping(narrow, decoder(pages=64))
    first, _ = begun(stage, request_spec("a"))
    begun(stage, request_spec("b"))
    assert kinds(stage.submit(request_spec("c"))) == ["CallPrefill"]
    assert targets(stage.prefilled(first, [0])) == [("c", "d")]


def test_a_canvas_longer_than_a_batch_is_read_when_it_is_first() -> None:
    narrow = replace(prefiller(), max_prefill_tokens_per_batch=8)
    begun(overlapping(narrow, decoder()))


def test_a_finished_prefill_that_waits_for_memory_goes_first() -> None:
    """Four canvases fill the decode worker; the fifth is prefilled and waits, so the sixth is not read early."""
    stage = overlapping(prefiller(pages=64), decoder(pages=16))
    begun_calls = [begun(stage, request_spec(name)) for name in "abcd"]
    fifth = only(stage.submit(request_spec("e")), fx.CallPrefill)
    assert kinds(stage.prefilled(fifth, [0])) == ["PublishStep"]
    assert kinds(stage.submit(request_spec("f"))) == ["CallPrefill"]
    prefill, reader = begun_calls[0]
    told = stage.fail(reader, Reason.KV_NOT_FOUND)
    assert targets(told) == [("e", "d")], "the pages go to who waits for them, not to a reader"
    assert kinds(stage.prefilled(prefill, [0])) == ["PublishStep"]


@pytest.mark.parametrize("waits", [True, False])
def test_readers_leave_the_memory_that_a_waiting_block_could_overflow_to(waits: bool) -> None:
    """Every prefill worker is overloaded by one canvas. Of 16 decode pages "a" has 4, and "long" 12 until it leaves."""
    stage = overlapping(prefiller("p"), decoder(pages=16), mode=HYBRID, overload_threshold_tokens=16)
    begun(stage, request_spec("a"))
    assert targets(stage.submit(request_spec("long", prompt=40))) == [("long", "d")]
    stage.register(prefiller("q"))
    assert targets(stage.submit(request_spec("b"))) == [("b", "q")]
    if waits:
        assert stage.submit(request_spec("head", prompt=56)) == []
    told = stage.feed(ev.RequestCancelled(request_id=RequestId("long")))
    assert targets(told) == ([] if waits else [("b", "d")])


def test_the_oldest_request_is_read_first_when_memory_comes_free() -> None:
    stage = overlapping(prefiller(pages=64), decoder(pages=4))
    _, reader = begun(stage, request_spec("a"))
    stage.now = 1.0
    assert kinds(stage.submit(request_spec("b"))) == ["CallPrefill"]
    stage.now = 2.0
    assert kinds(stage.submit(request_spec("c"))) == ["CallPrefill"]
    assert targets(stage.fail(reader, Reason.KV_NOT_FOUND)) == [("b", "d")]


def test_readers_take_turns_by_the_policy_of_decodes() -> None:
    stage = overlapping(prefiller(pages=64), decoder("d"), decoder("e"), decode_policy="round_robin")
    chosen = [begun(stage, request_spec(name))[1].target.worker_id for name in "abc"]
    assert chosen == ["d", "e", "d"]
