"""Workers that die, return, drain or deny their life, and answers that come too late, seen from the scheduler."""

from __future__ import annotations

import pytest

from common.core import effects as fx
from common.core import events as ev
from common.core.ids import RequestId, ServingMode
from common.core.work import FinishReason
from common.errors import Reason
from tests.core.samples import request_spec
from tests.core.stage import Stage, attempt_of, decoder, decoding, kinds, only, prefiller, targets

COLOCATED, DISAGGREGATED, HYBRID = ServingMode.COLOCATED, ServingMode.DISAGGREGATED, ServingMode.HYBRID


def test_a_lost_prefill_worker_takes_its_blocks_back_to_the_front() -> None:
    stage = Stage(DISAGGREGATED, prefiller("p1", pages=4), prefiller("p2", pages=4), decoder())
    first = only(stage.submit(request_spec("first")), fx.CallPrefill)
    second = only(stage.submit(request_spec("second")), fx.CallPrefill)
    stage.now = 1.0
    assert stage.submit(request_spec("third")) == []
    told = stage.lose(prefiller("p1"))
    assert told == [fx.FenceWorker(life=first.target), fx.CancelCall(call_id=first.call_id)]
    told = stage.prefilled(second, [0])
    stage.received(only(told, fx.CallDecode))
    told = stage.told[-1:]
    assert targets(told) == [("first", "p2")] and attempt_of(told) == ("p2", 1)


def test_losing_the_owner_of_waiting_kv_starts_again_and_of_kv_in_transfer_leaves_it_to_the_reader() -> None:
    stage = Stage(DISAGGREGATED, prefiller("p1"), prefiller("p2"), decoder(pages=4))
    _, fetching = decoding(stage, "a")
    waiting = only(stage.submit(request_spec("b")), fx.CallPrefill)
    owner = prefiller(waiting.target.worker_id)
    assert fetching.source and owner.life == prefiller("p2").life
    stage.prefilled(waiting, [0])
    told = stage.lose(owner)
    assert targets(told) == [("b", "p1")] and attempt_of(told) == ("p1", 1)
    assert stage.lose(prefiller("p1")) == [
        fx.FenceWorker(life=prefiller("p1").life),
        fx.CancelCall(call_id=only(told, fx.CallPrefill).call_id),
    ]
    assert kinds(stage.stepped(fetching, 1, [1])) == ["PublishStep"]  # it had everything already


def test_a_reader_is_not_blamed_for_an_owner_known_to_be_gone() -> None:
    stage = Stage(DISAGGREGATED, prefiller("p1"), decoder())
    _, decode = decoding(stage)
    stage.lose(prefiller("p1"))
    stage.register(prefiller("p1", incarnation=2))
    assert attempt_of(stage.fail(decode, Reason.PEER_LOST)) == ("p1", 1)
    assert stage.core.next_wakeup() is None


def test_a_lost_decode_worker_restarts_the_block_and_frees_the_kv_it_did_not_fetch() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder("d1"), decoder("d2"))
    prefill, decode = decoding(stage)
    told = stage.lose(decoder("d1"))
    assert kinds(told) == ["FenceWorker", "CancelCall", "ReleaseKv", "CallPrefill"]
    assert only(told, fx.CancelCall).call_id == decode.call_id
    assert only(told, fx.ReleaseKv).attempt == prefill.work.attempt


def test_what_was_shown_before_a_loss_is_not_shown_again() -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2"))
    call = only(stage.submit(request_spec("r", max_tokens=4, block=4)), fx.CallDecode)
    stage.stepped(call, 0, [1, 2])
    again = only(stage.lose(decoder("d1")), fx.CallDecode)
    assert stage.stepped(again, 0, [1, 2]) == []
    assert only(stage.stepped(again, 1, [0, 3]), fx.PublishStep).step.positions == (0, 3)
    assert kinds(stage.completed(again, 1, FinishReason.LENGTH)) == ["PublishBlock", "FinishRequest"]
    assert stage.core.view().replay_divergences == 0


def test_answers_of_an_old_call_count_for_nothing() -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2"))
    old = only(stage.submit(request_spec("r", max_tokens=4, block=4)), fx.CallDecode)
    new = only(stage.lose(decoder("d1")), fx.CallDecode)
    assert stage.stepped(old, 0, [0, 1, 2, 3]) == stage.completed(old, 1, FinishReason.LENGTH) == []
    assert stage.fail(old, Reason.INTERNAL) == stage.received(old) == []
    assert only(stage.stepped(new, 0, [0, 1, 2, 3]), fx.PublishStep).step.positions == (0, 1, 2, 3)


def test_kv_of_a_prefill_that_nobody_waits_for_is_released() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    call = only(stage.submit(request_spec("r")), fx.CallPrefill)
    told = stage.feed(ev.RequestCancelled(request_id=RequestId("r")))
    assert kinds(told) == ["CancelCall", "ReleaseKv", "FailRequest"]
    assert stage.prefilled(call, [0]) == [fx.ReleaseKv(owner=call.target, attempt=call.work.attempt)]


def test_a_repeated_prefill_answer_does_not_release_the_kv_in_use() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    prefill, decode = decoding(stage)
    assert stage.prefilled(prefill, [0]) == []
    assert stage.received(decode) == [] and stage.received(decode) == []


@pytest.mark.parametrize("received", [False, True])
def test_a_cancel_frees_everything_in_a_decode(received: bool) -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    prefill, decode = decoding(stage)
    if received:
        stage.received(decode)
    told = stage.feed(ev.RequestCancelled(request_id=RequestId("r"), reason=Reason.DEADLINE_EXCEEDED))
    assert kinds(told) == ["CancelCall", *([] if received else ["ReleaseKv"]), "FailRequest"]
    assert only(told, fx.FailRequest).reason is Reason.DEADLINE_EXCEEDED
    assert only(told, fx.CancelCall).call_id == decode.call_id and prefill.call_id != decode.call_id
    stage.assert_idle()


def test_a_new_life_ends_the_old_one_and_the_old_one_cannot_return() -> None:
    stage = Stage(COLOCATED, decoder("d", incarnation=3))
    call = only(stage.submit(request_spec("r")), fx.CallDecode)
    assert stage.register(decoder("d", incarnation=3)) == []
    told = stage.register(decoder("d", incarnation=5))
    assert kinds(told) == ["FenceWorker", "CancelCall", "CallDecode"] and attempt_of(told) == ("d", 1)
    assert only(told, fx.FenceWorker).life == call.target
    for late in (3, 4):
        assert stage.register(decoder("d", incarnation=late)) == []
        assert not stage.core.is_live(decoder("d", incarnation=late).life)
        assert stage.core.least_incarnation(decoder("d", incarnation=late).life.worker_id) == 6
        assert stage.lose(decoder("d", incarnation=late)) == []
    assert stage.core.is_live(decoder("d", incarnation=5).life)
    assert kinds(stage.lose(decoder("d", incarnation=5))) == ["FenceWorker", "CancelCall"]
    assert stage.register(decoder("d", incarnation=5)) == [] and stage.core.view().workers == ()


def test_a_worker_that_denies_its_life_is_lost() -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2", pages=8))
    first = only(stage.submit(request_spec("a")), fx.CallDecode)
    stage.submit(request_spec("b", prompt=30))
    told = stage.fail(first, Reason.STALE_INCARNATION)
    assert not stage.core.is_live(decoder("d1").life)
    assert kinds(told)[0] == "FenceWorker" and targets(told) == [("a", "d2")]


def test_a_reader_that_speaks_of_a_stale_life_may_mean_the_owner() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    _, decode = decoding(stage)
    assert kinds(stage.fail(decode, Reason.STALE_INCARNATION)) == ["ReleaseKv"]
    assert stage.core.is_live(decoder().life) and stage.core.is_live(prefiller().life)


def test_a_draining_worker_finishes_what_it_has_and_gets_nothing_new() -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2"))
    call = only(stage.submit(request_spec("a", max_tokens=8, block=4)), fx.CallDecode)
    stage.feed(ev.WorkerDraining(life=call.target))
    assert stage.worker("d1").draining
    assert targets(stage.submit(request_spec("b"))) == [("b", "d2")]
    assert targets(stage.run_block(call)) == [("a", "d2")]


def test_a_worker_that_refuses_because_it_drains_is_asked_no_more() -> None:
    stage = Stage(COLOCATED, decoder("d1"), decoder("d2"))
    call = only(stage.submit(request_spec("a")), fx.CallDecode)
    assert attempt_of(stage.fail(call, Reason.WORKER_DRAINING)) == ("d2", 1)
    assert stage.worker("d1").draining


def test_kv_of_a_draining_owner_is_still_fetched() -> None:
    stage = Stage(DISAGGREGATED, prefiller(), decoder())
    call = only(stage.submit(request_spec("a")), fx.CallPrefill)
    stage.feed(ev.WorkerDraining(life=call.target))
    assert kinds(stage.prefilled(call, [0])) == ["PublishStep", "CallDecode"]
