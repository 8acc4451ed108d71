"""Calls that fail, leases, deadlines and bad answers, seen from the scheduler."""

from __future__ import annotations

import pytest

from common.core import defaults
from common.core import effects as fx
from common.core import events as ev
from common.core.ids import RequestId, ServingMode
from common.core.params import CacheMode
from common.core.work import FinishReason, RemoteKv, StepDelta
from common.errors import Reason, WireError
from tests.core.samples import delta, request_spec
from tests.core.stage import Stage, attempt_of, decoder, decoding, done, handle_of, kinds, only, prefiller, targets

COLOCATED, DISAGGREGATED, HYBRID = ServingMode.COLOCATED, ServingMode.DISAGGREGATED, ServingMode.HYBRID


def test_a_prefill_without_pages_is_the_same_attempt_elsewhere() -> None:
    stage = Stage(DISAGGREGATED, prefiller("p1"), prefiller("p2"), decoder())
    call = only(stage.submit(request_spec("r")), fx.CallPrefill)
    assert attempt_of(stage.fail(call, Reason.NO_KV_PAGES)) == ("p2", 0)


def test_the_only_worker_without_pages_is_asked_again_after_the_backoff() -> None:
    stage = Stage(COLOCATED, decoder(), no_pages_backoff_s=0.05)
    call = only(stage.submit(request_spec("r")), fx.CallDecode)
    assert stage.fail(call, Reason.NO_KV_PAGES) == []
    assert stage.core.next_wakeup() == 0.05
    assert stage.tick(0.04) == []
    assert attempt_of(stage.tick(0.05)) == ("d", 0)


def test_endless_refusals_become_failed_attempts() -> None:
    stage = Stage(COLOCATED, decoder(), max_attempts=2)
    call = only(stage.submit(request_spec("r")), fx.CallDecode)
    for _ in range(2 * defaults.MAX_REFUSALS_PER_ATTEMPT + 1):
        stage.fail(call, Reason.NO_KV_PAGES)
        call = only(stage.tick(stage.now + 0.05), fx.CallDecode)
    assert only(stage.fail(call, Reason.NO_KV_PAGES), fx.FailRequest).reason is Reason.ATTEMPTS_EXHAUSTED
    stage.assert_idle()


def test_a_decode_without_pages_is_retried_alone_while_the_lease_lives() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1"), decoder("d2"))
    prefill, decode = decoding(stage, lease_s=30.0)
    stage.now = 2.0
    again = only(stage.fail(decode, Reason.NO_KV_PAGES), fx.CallDecode)
    assert (again.target.worker_id, again.work.attempt) == ("d2", prefill.work.attempt)
    assert isinstance(again.source, RemoteKv) and again.source.handle.lease_s == 28.0
    assert stage.worker("p").pages_free == 12


def test_a_decode_without_pages_after_the_lease_starts_at_the_prefill() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1"), decoder("d2"))
    _, decode = decoding(stage, lease_s=5.0)
    stage.now = 5.0
    told = stage.fail(decode, Reason.NO_KV_PAGES)
    assert kinds(told) == ["ReleaseKv", "CallPrefill"] and attempt_of(told) == ("p", 1)


def test_no_pages_without_kv_to_fetch_repeats_the_decode() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1"), decoder("d2"))
    prefill = only(stage.submit(request_spec("r", cache=CacheMode.NONE)), fx.CallPrefill)
    answer = ev.PrefillCompleted(call_id=prefill.call_id, first=delta("r", 0, [0]), kv=None, completion=None)
    decode = only(stage.feed(answer), fx.CallDecode)
    again = only(stage.fail(decode, Reason.NO_KV_PAGES), fx.CallDecode)
    assert (again.target.worker_id, again.source) == ("d2", decode.source)


@pytest.mark.parametrize(
    "reason", [Reason.KV_NOT_FOUND, Reason.KV_LEASE_EXPIRED, Reason.KV_CHECKSUM, Reason.STALE_ATTEMPT, Reason.PEER_LOST]
)
def test_a_failed_fetch_releases_the_kv_and_starts_again_at_the_prefill(reason: Reason) -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder(), peer_backoff_s=0.25)
    prefill, decode = decoding(stage)
    told = stage.fail(decode, reason) + stage.tick(0.25)
    assert kinds(told) == ["ReleaseKv", "CallPrefill"]
    assert only(told, fx.ReleaseKv) == fx.ReleaseKv(owner=prefill.target, attempt=prefill.work.attempt)
    assert attempt_of(told) == ("p", 1)


def test_attempts_end() -> None:
    stage = Stage(COLOCATED, decoder(), max_attempts=3)
    call = only(stage.submit(request_spec("r")), fx.CallDecode)
    for attempt in (1, 2):
        call = only(stage.fail(call, Reason.STALE_ATTEMPT), fx.CallDecode)
        assert call.work.attempt.attempt == attempt
    assert only(stage.fail(call, Reason.STALE_ATTEMPT), fx.FailRequest).reason is Reason.ATTEMPTS_EXHAUSTED
    stage.assert_idle()


def test_attempts_are_counted_per_block_and_reported() -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r", max_tokens=8, block=4)), fx.CallDecode)
    told = stage.run_block(only(stage.fail(call, Reason.STALE_ATTEMPT), fx.CallDecode))
    assert only(told, fx.PublishBlock).placement.attempts == 2
    assert attempt_of(told) == ("d", 0)


def test_broken_calls_back_off_once_per_incident_and_longer_each_time() -> None:
    stage = Stage(COLOCATED, decoder(), peer_backoff_s=0.25)
    calls = [only(stage.submit(request_spec(name)), fx.CallDecode) for name in ("a", "b", "c")]
    for call in calls:
        assert stage.fail(call, Reason.PEER_LOST) == []
    assert stage.core.next_wakeup() == 0.25
    told = stage.tick(0.25)
    assert len(targets(told)) == 3
    stage.fail(only(told[:1], fx.CallDecode), Reason.PEER_LOST)
    assert stage.core.next_wakeup() == 0.75
    stage.stepped(only(told[1:2], fx.CallDecode), 0, [0])  # it lives: the next failure is a first one
    stage.now = 0.75
    stage.fail(only(told[1:2], fx.CallDecode), Reason.PEER_LOST)
    assert stage.core.next_wakeup() == 1.0


def test_back_offs_outlast_the_heartbeat_timeout_before_attempts_end() -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r")), fx.CallDecode)
    while not (told := stage.fail(call, Reason.PEER_LOST)):
        wakeup = stage.core.next_wakeup()
        assert wakeup is not None
        call = only(stage.tick(wakeup), fx.CallDecode)
    assert only(told, fx.FailRequest).reason is Reason.ATTEMPTS_EXHAUSTED
    assert stage.now > defaults.DEFAULT_HEARTBEAT_TIMEOUT_S


def test_an_unfetched_lease_ends_at_its_time() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder(pages=4))
    _, _ = decoding(stage, "a")
    waiting = only(stage.submit(request_spec("b")), fx.CallPrefill)
    stage.now = 1.0
    stage.prefilled(waiting, [0], lease_s=5.0)
    assert stage.core.next_wakeup() == 6.0
    assert stage.tick(5.9) == []
    told = stage.tick(6.0)
    assert kinds(told) == ["ReleaseKv", "CallPrefill"] and attempt_of(told) == ("p", 1)
    assert stage.core.next_wakeup() is None


def test_an_owner_that_let_waiting_kv_go_means_a_new_prefill() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder(pages=4))
    decoding(stage, "a")
    waiting = only(stage.submit(request_spec("b")), fx.CallPrefill)
    stage.prefilled(waiting, [0])
    gone = ev.KvLeaseEnded(owner=waiting.target, attempt=waiting.work.attempt)
    told = stage.feed(gone)
    assert kinds(told) == ["CallPrefill"] and attempt_of(told) == ("p", 1)
    assert stage.feed(gone) == []


def test_an_owner_that_let_kv_go_in_a_transfer_only_frees_its_pages() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    prefill, decode = decoding(stage)
    assert stage.feed(ev.KvLeaseEnded(owner=prefill.target, attempt=prefill.work.attempt)) == []
    assert stage.worker("p").pages_free == 16
    assert stage.received(decode) == []
    assert attempt_of(stage.fail(decode, Reason.KV_LEASE_EXPIRED)) == ("p", 1)


def test_a_step_tells_as_well_as_the_message_that_the_kv_arrived() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    _, decode = decoding(stage)
    stage.stepped(decode, 1, [1])
    assert stage.worker("p").pages_free == 16
    assert stage.received(decode) == []  # late: no step back


def test_a_pair_with_different_layouts_is_never_tried_again() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1"), decoder("d2"))
    _, decode = decoding(stage)
    told = stage.fail(decode, Reason.LAYOUT_MISMATCH)
    assert kinds(told) == ["ReleaseKv", "CallPrefill"] and attempt_of(told) == ("p", 1)
    for _ in range(3):
        told = stage.prefilled(only(told, fx.CallPrefill), [0])
        assert targets(told) == [("r", "d2")]
        told = stage.fail(only(told, fx.CallDecode), Reason.KV_LEASE_EXPIRED)


def test_without_another_pair_a_layout_mismatch_is_an_internal_error() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    _, decode = decoding(stage)
    told = stage.fail(decode, Reason.LAYOUT_MISMATCH)
    assert kinds(told) == ["ReleaseKv", "FailRequest"] and only(told, fx.FailRequest).reason is Reason.INTERNAL
    stage.assert_idle()


def test_kv_goes_only_to_workers_with_its_layout() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1", pages=64, layout="other"), decoder("d2"))
    _, decode = decoding(stage)
    assert decode.target.worker_id == "d2"


def test_kv_that_no_decode_worker_can_take_any_more_is_let_go() -> None:
    stage = Stage(HYBRID, prefiller(), decoder("big", pages=12), decoder("small", pages=4))
    busy = only(stage.submit(request_spec("busy", prompt=20, max_tokens=4)), fx.CallPrefill)
    stage.prefilled(busy, [0])
    large = only(stage.submit(request_spec("large", prompt=36, max_tokens=4)), fx.CallPrefill)
    assert kinds(stage.prefilled(large, [0])) == ["PublishStep"]
    stage.feed(ev.WorkerDraining(life=decoder("big").life))
    view = stage.core.view()
    assert (view.waiting_decode_blocks, view.parked_blocks) == (0, 1)
    assert stage.told[-1] == fx.ReleaseKv(owner=large.target, attempt=large.work.attempt)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Reason.INTERNAL, Reason.INTERNAL),
        (Reason.DUPLICATE_REQUEST_ID, Reason.INTERNAL),
        (Reason.BAD_SAMPLING_PARAMS, Reason.BAD_SAMPLING_PARAMS),
        (Reason.INVALID_PROMPT, Reason.INVALID_PROMPT),
        (Reason.TOO_LONG, Reason.TOO_LONG),
    ],
)
def test_final_refusals_end_the_request(reason: Reason, told: Reason) -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r")), fx.CallDecode)
    assert only(stage.fail(call, reason), fx.FailRequest).reason is told
    stage.assert_idle()


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_ends_or_repeats_and_leaks_nothing(reason: Reason) -> None:
    stage = Stage(DISAGGREGATED, prefiller("p1"), prefiller("p2"), decoder("d1"), decoder("d2"))
    prefill, decode = decoding(stage, "a")
    stage.fail(decode, reason)
    other = only(stage.submit(request_spec("b")), fx.CallPrefill)
    stage.fail(other, reason)
    for name in ("a", "b"):
        stage.feed(ev.RequestCancelled(request_id=RequestId(name)))
    stage.assert_idle()
    ends = [effect.request_id for effect in stage.told if isinstance(effect, fx.FailRequest)]
    assert sorted(ends) == ["a", "b"] and prefill.call_id < decode.call_id


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    stage = Stage(COLOCATED, decoder(pages=4))
    call = only(stage.submit(request_spec("runs", deadline_s=2.0)), fx.CallDecode)
    stage.submit(request_spec("waits", deadline_s=1.0))
    assert call.deadline_s == 2.0 and stage.core.next_wakeup() == 1.0
    assert only(stage.tick(1.0), fx.FailRequest).request_id == "waits"
    told = stage.tick(2.0)
    assert kinds(told) == ["CancelCall", "FailRequest"]
    assert only(told, fx.FailRequest).reason is Reason.DEADLINE_EXCEEDED
    assert stage.core.next_wakeup() is None
    stage.assert_idle()


def test_calls_get_the_time_that_is_left() -> None:
    stage = Stage(COLOCATED)
    stage.submit(request_spec("r", deadline_s=5.0))
    stage.now = 2.0
    assert only(stage.register(decoder()), fx.CallDecode).deadline_s == 3.0


def test_a_request_past_its_deadline_is_refused() -> None:
    with pytest.raises(WireError) as caught:
        Stage(COLOCATED, decoder()).submit(request_spec("r", deadline_s=0.0))
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("deadline_s", "ends"), [(1.01, True), (None, False), (9.0, False)])
def test_a_timed_out_call_ends_the_request_only_at_its_own_deadline(deadline_s: float | None, ends: bool) -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2"))
    call = only(stage.submit(request_spec("r", deadline_s=deadline_s)), fx.CallDecode)
    stage.now = 1.0
    told = stage.fail(call, Reason.DEADLINE_EXCEEDED)
    assert kinds(told) == (["FailRequest"] if ends else ["CallDecode"])


@pytest.mark.parametrize(
    "step",
    [
        StepDelta(step=0, positions=(4,), token_ids=(1,), confidences=(0.5,)),
        StepDelta(step=0, positions=(0, 1), token_ids=(1,), confidences=(0.5,)),
    ],
)
def test_a_worker_that_speaks_of_other_positions_ends_the_request(step: StepDelta) -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r", block=4)), fx.CallDecode)
    told = stage.feed(ev.DecodeStepped(call_id=call.call_id, step=step))
    assert kinds(told) == ["CancelCall", "FailRequest"] and only(told, fx.FailRequest).reason is Reason.INTERNAL
    stage.assert_idle()


def test_a_block_with_holes_is_not_committed() -> None:
    stage = Stage(COLOCATED, decoder())
    call = only(stage.submit(request_spec("r", block=4, max_tokens=8)), fx.CallDecode)
    stage.stepped(call, 0, [0, 1, 3])
    assert only(stage.completed(call, 0), fx.FailRequest).reason is Reason.INTERNAL
    stage.assert_idle()


@pytest.mark.parametrize("answer", ["no kv", "kv and completion", "another attempt", "another owner"])
def test_a_prefill_answer_that_contradicts_itself_ends_the_request(answer: str) -> None:
    stage = Stage(DISAGGREGATED, prefiller("p"), prefiller("q"), decoder())
    call = only(stage.submit(request_spec("r", max_tokens=4)), fx.CallPrefill)
    other = only(stage.submit(request_spec("other")), fx.CallPrefill)
    own = handle_of(call)
    kv = {"no kv": None, "kv and completion": own, "another attempt": handle_of(other)}.get(answer, own)
    if answer == "another owner":
        kv = handle_of(fx.CallPrefill(call_id=call.call_id, target=other.target, work=call.work, deadline_s=None))
    completion = done(0, FinishReason.LENGTH) if answer == "kv and completion" else None
    first = delta("r", 0, [0, 1, 2, 3])
    told = stage.feed(ev.PrefillCompleted(call_id=call.call_id, first=first, kv=kv, completion=completion))
    assert only(told, fx.FailRequest).reason is Reason.INTERNAL
    assert stage.worker("p").pages_free == 16
