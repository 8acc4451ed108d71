"""A cancel or a deadline, in every state that a request can be in: one event later nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.core import effects as fx
from common.core import events as ev
from common.core.ids import RequestId, ServingMode
from common.errors import Reason
from tests.core.samples import request_spec
from tests.core.stage import Stage, decoder, kinds, only, prefiller

DEADLINE_S = 5.0
R = request_spec("r", deadline_s=DEADLINE_S)


def queued() -> Stage:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller())
    assert stage.submit(R) == []
    return stage


def prefilling() -> Stage:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller(), decoder())
    only(stage.submit(R), fx.CallPrefill)
    return stage


def waiting_for_decode_memory() -> Stage:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller(), decoder(pages=4))
    other = only(stage.submit(request_spec("other")), fx.CallPrefill)
    prefill = only(stage.submit(R), fx.CallPrefill)
    only(stage.prefilled(other, [0]), fx.CallDecode)
    stage.prefilled(prefill, [0])
    assert stage.core.view().waiting_decode_blocks == 1
    return stage


def in_transfer() -> Stage:
    stage = prefilling()
    (prefill,) = [effect for effect in stage.told if isinstance(effect, fx.CallPrefill)]
    only(stage.prefilled(prefill, [0]), fx.CallDecode)
    return stage


def decoding() -> Stage:
    stage = in_transfer()
    stage.received(only(stage.told, fx.CallDecode))
    return stage


def between_blocks() -> Stage:
    stage = decoding()
    decode = only(stage.told, fx.CallDecode)
    stage.stepped(decode, 1, list(range(1, R.block_length_tokens)))
    # The next block finds no decode worker to go to.
    stage.feed(ev.WorkerDraining(life=decoder().life))
    assert kinds(stage.completed(decode, 1)) == ["PublishBlock"]
    return stage


ENDED_BY = {
    queued: [],
    # The prefill may end before it hears of the cancel, and its K/V be kept.
    prefilling: ["CancelCall", "ReleaseKv"],
    waiting_for_decode_memory: ["ReleaseKv"],
    in_transfer: ["CancelCall", "ReleaseKv"],
    decoding: ["CancelCall"],
    between_blocks: [],
}


@pytest.mark.parametrize("reason", [Reason.CANCELLED, Reason.DEADLINE_EXCEEDED])
@pytest.mark.parametrize(("state", "orders"), ENDED_BY.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_one_event_frees_everything(state: Callable[[], Stage], orders: list[str], reason: Reason) -> None:
    stage = state()
    if reason is Reason.DEADLINE_EXCEEDED:
        told = stage.tick(DEADLINE_S)
    else:
        told = stage.feed(ev.RequestCancelled(request_id=RequestId("r"), reason=reason))
    assert kinds(told) == [*orders, "FailRequest"]
    failed = only(told, fx.FailRequest)
    assert (failed.request_id, failed.reason) == ("r", reason)
    stage.feed(ev.RequestCancelled(request_id=RequestId("other")))
    stage.assert_idle()
    assert stage.core.next_wakeup() is None
