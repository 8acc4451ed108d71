"""Blocks through the scheduler: three modes, placement order, admission, resume (reference invariants 21 to 29)."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from common.core import effects as fx
from common.core import events as ev
from common.core.ids import RequestId, ServingMode
from common.core.params import CacheMode
from common.core.request import Request
from common.core.work import FinishReason, LocalPrefill, NoKv, RemoteKv
from common.errors import InvalidRequest, Reason, TooLong, WireError
from tests.core.samples import delta, iteration_report, request_spec, token_at
from tests.core.stage import Stage, decoder, kinds, only, prefiller, targets

COLOCATED, DISAGGREGATED, HYBRID = ServingMode.COLOCATED, ServingMode.DISAGGREGATED, ServingMode.HYBRID


def test_a_disaggregated_block_goes_through_prefill_transfer_and_decode() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    prefill = only(stage.submit(request_spec("r", prompt=8, max_tokens=4, block=4)), fx.CallPrefill)
    assert prefill.work.attempt.attempt == 0 and prefill.work.generated_token_ids == ()
    assert (stage.worker("p").pages_free, stage.worker("p").outstanding_prefill_tokens) == (13, 12)

    stage.now = 1.0
    told = stage.prefilled(prefill, [1], lease_s=30.0)
    assert kinds(told) == ["PublishStep", "CallDecode"]
    decode = only(told, fx.CallDecode)
    assert isinstance(decode.source, RemoteKv) and decode.source.first == delta("r", 0, [1])
    assert decode.source.handle.owner == prefill.target and decode.source.handle.lease_s == 30.0
    assert (stage.worker("p").pages_free, stage.worker("p").outstanding_prefill_tokens) == (13, 0)
    assert (stage.worker("d").pages_free, stage.worker("d").active_decodes) == (13, 1)

    stage.now = 2.0
    assert stage.received(decode) == []
    assert stage.worker("p").pages_free == 16
    stage.now = 3.0
    assert only(stage.stepped(decode, 1, [0, 2, 3]), fx.PublishStep).step.positions == (0, 2, 3)
    told = stage.completed(decode, 1, FinishReason.LENGTH)
    assert kinds(told) == ["PublishBlock", "FinishRequest"]
    placement = only(told, fx.PublishBlock).placement
    assert (placement.prefill_worker_id, placement.decode_worker_id, placement.overflow) == ("p", "d", False)
    assert (placement.prefill_forwards, placement.decode_forwards, placement.attempts) == (1, 1, 1)
    # From the Decode call at 1.0 to its end at 3.0, less what no prefill hid of the transfer: whenever its news came.
    assert (placement.queue_s, placement.prefill_s, placement.decode_s) == (0.0, 1.0, 1.875)
    assert (placement.transfer_s, placement.transfer_bytes) == (0.25, 640)
    stage.assert_idle()


def test_a_block_that_its_prefill_finishes_never_decodes() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    prefill = only(stage.submit(request_spec("r", max_tokens=8, block=4)), fx.CallPrefill)
    told = stage.prefill_finished(prefill, [0, 1, 2, 3])
    assert kinds(told) == ["PublishStep", "PublishBlock", "CallPrefill"]
    placement = only(told, fx.PublishBlock).placement
    assert (placement.decode_worker_id, placement.decode_forwards, placement.decode_s) == (None, 0, 0.0)
    again = only(told, fx.CallPrefill)
    assert (again.work.attempt.block, again.work.attempt.attempt) == (1, 0)
    assert again.work.generated_token_ids == tuple(token_at("r", position) for position in range(4))
    told = stage.prefill_finished(again, [4], FinishReason.STOP)
    assert only(told, fx.FinishRequest).finish is FinishReason.STOP
    stage.assert_idle()


def test_a_colocated_block_is_one_call() -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r", prompt=8, max_tokens=4, block=4)), fx.CallDecode)
    assert isinstance(call.source, LocalPrefill)
    assert stage.worker("d").outstanding_prefill_tokens == 12
    stage.stepped(call, 0, [3])
    assert stage.worker("d").outstanding_prefill_tokens == 0
    stage.stepped(call, 1, [0, 1, 2])
    told = stage.completed(call, 1, FinishReason.LENGTH)
    placement = only(told, fx.PublishBlock).placement
    assert (placement.prefill_worker_id, placement.decode_worker_id, placement.overflow) == ("d", "d", False)
    stage.assert_idle()


def test_cache_mode_none_decodes_without_kv_and_keeps_nothing_at_the_prefill_worker() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    prefill = only(stage.submit(request_spec("r", max_tokens=4, cache=CacheMode.NONE)), fx.CallPrefill)
    first = delta("r", 0, [2])
    told = stage.feed(ev.PrefillCompleted(call_id=prefill.call_id, first=first, kv=None, completion=None))
    assert only(told, fx.CallDecode).source == NoKv(first=first)
    assert stage.worker("p").pages_free == 16


def test_colocated_prefills_spread_over_idle_workers() -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2"))
    told = [effect for index in range(4) for effect in stage.submit(request_spec(f"r{index}"))]
    assert targets(told) == [("r0", "d1"), ("r1", "d2"), ("r2", "d1"), ("r3", "d2")]


def test_hybrid_overflows_when_every_prefill_worker_is_at_the_threshold() -> None:
    stage = Stage(HYBRID, prefiller("p"), decoder("d"), overload_threshold_tokens=16)
    told = [effect for index in range(2) for effect in stage.submit(request_spec(f"r{index}"))]
    assert targets(told) == [("r0", "p"), ("r1", "d")]  # 16 outstanding tokens at p, with 12 pages free
    call = only(told, fx.CallDecode)
    assert stage.submit(request_spec("r2")) == []  # the decode worker is at the threshold too
    told = stage.stepped(call, 0, [0, 1, 2, 3])
    assert targets(told) == [("r2", "d")]  # its prefill has run
    told = stage.completed(call, 0)
    assert only(told, fx.PublishBlock).placement.overflow


def test_hybrid_overflows_when_the_prefill_workers_have_no_pages() -> None:
    stage = Stage(HYBRID, prefiller("p", pages=4), decoder("d"))
    told = [effect for index in range(2) for effect in stage.submit(request_spec(f"r{index}"))]
    assert targets(told) == [("r0", "p"), ("r1", "d")]


def test_hybrid_without_a_prefill_worker_is_colocated() -> None:
    stage = Stage(HYBRID, decoder("d"))
    assert targets(stage.submit(request_spec("r"))) == [("r", "d")]


@pytest.mark.parametrize("mode", [HYBRID, DISAGGREGATED])
def test_without_overflow_prefills_stay_queued(mode: ServingMode) -> None:
    stage = Stage(mode, prefiller("p", pages=4), decoder("d"), overflow_enabled=False)
    assert targets(stage.submit(request_spec("r0"))) == [("r0", "p")]
    assert stage.submit(request_spec("r1")) == []
    assert stage.core.view().queued_blocks == 1


@pytest.mark.parametrize(("decoders", "admitted"), [(2, False), (4, True)])
def test_overflow_leaves_the_pages_that_a_finished_prefill_waits_for(decoders: int, admitted: bool) -> None:
    # Each decode worker has 4 of 8 pages free; a finished prefill of 5 pages waits; the newcomer needs 4.
    names = [f"d{index}" for index in range(decoders)]
    workers = [decoder(name, pages=8) for name in names]
    stage = Stage(HYBRID, prefiller("p", pages=5), *workers, overload_threshold_tokens=1)
    prefill = only(stage.submit(request_spec("waits", prompt=12, max_tokens=8)), fx.CallPrefill)
    for name in names:
        call = only(stage.submit(request_spec(f"on-{name}")), fx.CallDecode)
        assert call.target.worker_id == name
        stage.stepped(call, 0, [0])
    assert kinds(stage.prefilled(prefill, [0])) == ["PublishStep"]
    told = stage.submit(request_spec("new"))
    assert targets(told) == ([("new", "d0")] if admitted else [])
    free = sum(stage.worker(name).pages_free for name in names)
    assert free == (12 if admitted else 8)


def test_a_blocked_head_holds_a_smaller_follower_until_both_fit() -> None:
    stage = Stage(COLOCATED, decoder("d", pages=12))
    eight = request_spec("big", prompt=24, max_tokens=8, block=8)
    holder = only(stage.submit(request_spec("holder", prompt=24, max_tokens=8, block=8)), fx.CallDecode)
    assert stage.submit(eight) == []
    assert stage.submit(request_spec("small", prompt=8, max_tokens=8, block=8)) == []  # 4 pages, 4 free
    told = stage.run_block(holder, FinishReason.LENGTH)
    assert targets(told) == [("big", "d"), ("small", "d")]


def test_an_older_continuation_beats_a_newer_arrival() -> None:
    stage = Stage(COLOCATED, decoder("d", pages=6))
    old = only(stage.submit(request_spec("old", prompt=16, max_tokens=8, block=4)), fx.CallDecode)  # 6 pages
    stage.now = 1.0
    assert stage.submit(request_spec("new", prompt=8, max_tokens=8, block=4)) == []  # 4 pages
    assert targets(stage.run_block(old)) == [("old", "d")]


def test_requests_of_one_moment_go_by_id() -> None:
    stage = Stage(COLOCATED)
    for name in ("c", "a", "b"):
        assert stage.submit(request_spec(name)) == []
    assert [request for request, _ in targets(stage.register(decoder(pages=64)))] == ["a", "b", "c"]


def test_finished_prefills_decode_in_order_of_age() -> None:
    stage = Stage(DISAGGREGATED, prefiller(pages=64), decoder("d1", pages=4))
    calls = [only(stage.submit(request_spec(name)), fx.CallPrefill) for name in ("a", "b", "c")]
    decode = only(stage.prefilled(calls[0], [0]), fx.CallDecode)
    assert stage.prefilled(calls[2], [0])[1:] == [] and stage.prefilled(calls[1], [0])[1:] == []
    assert stage.core.view().waiting_decode_blocks == 2
    assert targets(stage.fail(decode, Reason.INTERNAL)) == [("b", "d1")]


def test_a_decode_goes_where_most_pages_are_free() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1", pages=8), decoder("d2", pages=9))
    prefill = only(stage.submit(request_spec("r")), fx.CallPrefill)
    assert targets(stage.prefilled(prefill, [0])) == [("r", "d2")]


def test_a_prefill_waits_for_a_decode_worker_to_exist() -> None:
    stage = Stage(DISAGGREGATED, prefiller())
    assert stage.submit(request_spec("r")) == []
    assert targets(stage.register(decoder())) == [("r", "p")]


def test_reports_are_shown_and_change_no_tally() -> None:
    stage = Stage(COLOCATED, decoder())
    report = replace(iteration_report(decode_tokens=8, deficit_tokens=3), free_pages=1, active_decodes=2)
    assert stage.feed(ev.WorkerReported(life=decoder().life, report=report)) == []
    assert stage.feed(ev.WorkerReported(life=decoder(incarnation=9).life, report=report)) == []
    assert stage.worker("d").report == report and stage.worker("d").pages_free == 16


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (request_spec(""), "request_id"),
        (request_spec("r" * 129), "request_id"),
        (request_spec("r", max_tokens=0), "max_tokens"),
        (request_spec("r", max_tokens=-5), "max_tokens"),
        (request_spec("r", prompt=0), "prompt_token_ids"),
        (request_spec("r", committed=(1, 2, 3)), "committed_token_ids"),
        (request_spec("r", committed=(1,) * 12), "committed_token_ids"),
        (request_spec("r", shown=((4, 1),)), "shown"),
        (request_spec("r", committed=(1, 2, 3, 4), shown=((3, 1),)), "shown"),
    ],
)
def test_senseless_requests_are_refused_by_field(spec, field: str) -> None:
    stage = Stage(COLOCATED, decoder())
    with pytest.raises(InvalidRequest) as caught:
        stage.submit(spec)
    assert caught.value.field == field
    stage.assert_idle()


@pytest.mark.parametrize(
    ("mode", "workers", "longest"),
    [
        (COLOCATED, [decoder("d1", pages=4), decoder("d2", pages=6)], 24),
        (DISAGGREGATED, [prefiller(pages=4), decoder(pages=6)], 16),
        (DISAGGREGATED, [prefiller("p1", pages=8, layout="x"), prefiller("p2", pages=5), decoder(pages=6)], 20),
        (HYBRID, [prefiller(pages=4), decoder(pages=6)], 24),
    ],
)
def test_a_canvas_longer_than_any_worker_can_serve_is_refused_before_any_compute(mode, workers, longest) -> None:
    stage = Stage(mode, *workers)
    with pytest.raises(TooLong) as caught:
        stage.submit(request_spec("long", prompt=longest - 3, max_tokens=4))
    assert caught.value.field == "max_tokens" and str(longest) in str(caught.value)
    stage.assert_idle()
    assert len(targets(stage.submit(request_spec("fits", prompt=longest - 4, max_tokens=4)))) == 1


def test_a_request_from_before_the_first_worker_fails_too_long_when_its_turn_comes() -> None:
    stage = Stage(COLOCATED)
    stage.submit(request_spec("long", prompt=100))
    stage.submit(request_spec("short"))
    told = stage.register(decoder(pages=8))
    failed = only(told, fx.FailRequest)
    assert (failed.request_id, failed.reason, failed.field) == ("long", Reason.TOO_LONG, "max_tokens")
    assert targets(told) == [("short", "d")]


def test_a_request_that_fits_nobody_any_more_is_parked_and_blocks_no_one() -> None:
    stage = Stage(COLOCATED, decoder("big", pages=16), decoder("small", pages=4))
    big = only(stage.submit(request_spec("large", prompt=40, max_tokens=8)), fx.CallDecode)
    assert big.target.worker_id == "big"
    stage.now = 1.0
    told = stage.lose(decoder("big"))
    assert targets(told) == [] and stage.core.view().parked_blocks == 1
    assert targets(stage.submit(request_spec("r"))) == [("r", "small")]
    told = stage.register(decoder("big", incarnation=2))
    assert targets(told) == [("large", "big")] and stage.core.view().parked_blocks == 0
    assert only(told, fx.CallDecode).work.attempt.attempt == 1


def test_a_parked_request_can_be_cancelled() -> None:
    stage = Stage(COLOCATED, decoder("big"), decoder("small", pages=4))
    stage.submit(request_spec("large", prompt=40))
    stage.lose(decoder("big"))
    assert kinds(stage.feed(ev.RequestCancelled(request_id=RequestId("large")))) == ["FailRequest"]
    stage.assert_idle()


def test_a_full_queue_refuses_with_a_hint_and_running_requests_do_not_count() -> None:
    stage = Stage(COLOCATED, decoder(pages=4), max_queued_requests=2)
    running = only(stage.submit(request_spec("r0")), fx.CallDecode)
    stage.submit(request_spec("r1"))
    stage.submit(request_spec("r2"))
    with pytest.raises(WireError) as caught:
        stage.submit(request_spec("r3"))
    assert caught.value.reason is Reason.QUEUE_FULL and caught.value.retry_after_s is not None
    stage.run_block(running)  # its next block waits behind nobody: r0 is the oldest
    with pytest.raises(WireError):
        stage.submit(request_spec("r3"))
    stage.feed(ev.RequestCancelled(request_id=RequestId("r1")))
    stage.submit(request_spec("r3"))


def test_a_duplicate_id_does_not_disturb_the_living_request() -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r", max_tokens=4)), fx.CallDecode)
    before = stage.core.view()
    with pytest.raises(WireError) as caught:
        stage.submit(request_spec("r", max_tokens=4))
    assert caught.value.reason is Reason.DUPLICATE_REQUEST_ID and stage.core.view() == before
    assert kinds(stage.run_block(call, FinishReason.LENGTH)) == ["PublishStep", "PublishBlock", "FinishRequest"]
    assert len(targets(stage.submit(request_spec("r", max_tokens=4)))) == 1  # the id is free again


def test_resume_starts_at_the_next_block_and_repeats_no_token() -> None:
    stage = Stage(COLOCATED, decoder())
    committed = tuple(token_at("r", position) for position in range(4))
    spec = request_spec("r", max_tokens=8, block=4, committed=committed, shown=((5, token_at("r", 5)), (6, 4711)))
    call = only(stage.submit(spec), fx.CallDecode)
    assert call.work.attempt.block == 1 and call.work.generated_token_ids == committed
    told = stage.stepped(call, 0, [4, 5, 6, 7])
    assert only(told, fx.PublishStep).step.positions == (4, 7)
    assert stage.core.view().replay_divergences == 1  # 6 was shown as something else; the shown one stays
    assert kinds(stage.completed(call, 0, FinishReason.LENGTH)) == ["PublishBlock", "FinishRequest"]


def test_what_is_there_of_a_running_request_is_told_to_whoever_asks_for_the_same() -> None:
    stage = Stage(COLOCATED, decoder())
    spec = request_spec("r", max_tokens=8, block=4, deadline_s=9.0)
    assert stage.core.so_far(spec) is None
    call = only(stage.submit(spec), fx.CallDecode)
    nothing = stage.core.so_far(spec)
    assert nothing is not None and nothing.step.positions == ()
    second = only(stage.run_block(call), fx.CallDecode)
    stage.stepped(second, 0, [6])
    before = stage.core.view()
    first = tuple(token_at("r", position) for position in range(4))
    for same in (
        spec,
        replace(spec, deadline_s=None, committed_token_ids=first, shown=((5, 77), (6, token_at("r", 6)))),
    ):
        told = stage.core.so_far(same)
        assert told is not None and (told.block, told.step.positions) == (1, (0, 1, 2, 3, 6))
        assert told.step.token_ids == tuple(token_at("r", position) for position in told.step.positions)
    contradictions = (replace(spec, committed_token_ids=(*first[:3], 77)), replace(spec, shown=((6, 77),)))
    others = (request_spec("r", max_tokens=7, block=4), replace(spec, tenant="t"), request_spec("q"))
    for other in (*others, *contradictions):
        assert stage.core.so_far(other) is None
    assert stage.core.view() == before
    stage.run_block(second, FinishReason.LENGTH)
    assert stage.core.so_far(spec) is None


def test_resume_after_the_last_block_only_ends() -> None:
    stage = Stage(COLOCATED, decoder())
    told = stage.submit(request_spec("r", max_tokens=4, block=4, committed=(1, 2, 3, 4)))
    assert told == [fx.FinishRequest(request_id=RequestId("r"), finish=FinishReason.LENGTH)]
    stage.assert_idle()


def test_ended_requests_leave_nothing_behind() -> None:
    stage = Stage(COLOCATED, decoder())
    for index in range(300):
        call = only(stage.submit(request_spec(f"r{index}", max_tokens=4, deadline_s=1e6)), fx.CallDecode)
        if index % 2:
            stage.run_block(call, FinishReason.LENGTH)
        else:
            stage.feed(ev.RequestCancelled(request_id=RequestId(f"r{index}")))
    assert stage.core.view().ended_requests == 300
    assert stage.core.next_wakeup() is None
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Request]


def test_news_of_strangers_changes_nothing() -> None:
    stage = Stage(COLOCATED)
    nobody = decoder().life
    strangers: list[ev.SchedulerEvent] = [
        ev.RequestCancelled(request_id=RequestId("nobody")),
        ev.WorkerLost(life=nobody),
        ev.WorkerDraining(life=nobody),
        ev.Tick(),
    ]
    assert [stage.feed(event) for event in strangers] == [[], [], [], []]
