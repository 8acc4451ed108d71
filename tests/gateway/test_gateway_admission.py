"""Admission: counted in canvas tokens, refused with a time to come back, given back however a request ends."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.clock import ManualClock
from common.errors import Reason, WireError
from services.gateway.admission import Admission
from tests.gateway.running_gateway import generate_request, take
from tests.gateway.scripted_scheduler import finished, play, play_then_hang, queued, revealed_tokens, step

HANGING = play_then_hang(queued())
WHOLE = play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished())


@pytest.mark.parametrize("settings", [{"max_inflight_requests": 1}, {"max_inflight_tokens": 17}], ids=str)
async def test_a_full_gateway_refuses_with_a_time_to_come_back(start_gateway, scheduler, settings):
    scheduler.script(HANGING, WHOLE)
    async with start_gateway(**settings) as client:
        # 5 prompt tokens and one block of 4: two of these are 18 canvas tokens.
        call = client.stub.Generate(generate_request(), timeout=20)
        await take(call, "accepted")
        refused = await client.generate()
        call.cancel()
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.error is not None and refused.error.reason is Reason.QUEUE_FULL
        assert refused.error.retry_after_s is not None and refused.error.retry_after_s > 0
        assert len(scheduler.requests) == 1


async def test_a_request_larger_than_the_limit_runs_alone(start_gateway, scheduler):
    scheduler.script(WHOLE)
    async with start_gateway(max_inflight_tokens=1) as client:
        assert (await client.generate()).text == "abcd"


@given(st.lists(st.integers(min_value=1, max_value=40), max_size=30), st.data())
def test_what_is_admitted_stays_under_the_limits_and_comes_back(sizes, data):
    admission = Admission(max_requests=5, max_tokens=60, clock=ManualClock())
    live: dict[int, tuple[Any, int]] = {}
    for number, size in enumerate(sizes):
        place = admission.admit(str(number), size)
        fits = not live or (len(live) < 5 and sum(tokens for _, tokens in live.values()) + size <= 60)
        if fits:
            place.__enter__()
            live[number] = (place, size)
        else:
            with pytest.raises(WireError) as caught:
                place.__enter__()
            assert caught.value.reason is Reason.QUEUE_FULL
        assert admission.inflight_tokens == sum(tokens for _, tokens in live.values())
        if live and data.draw(st.booleans()):
            live.pop(data.draw(st.sampled_from(sorted(live))))[0].__exit__(None, None, None)
    for place, _ in live.values():
        place.__exit__(None, None, None)
    assert (admission.inflight_tokens, admission.inflight_requests) == (0, 0)


def test_a_place_that_turns_out_larger_must_fit_beside_others():
    admission = Admission(max_requests=5, max_tokens=60, clock=ManualClock())
    with admission.admit("small", 10), admission.admit("unknown", 20) as place:
        place.resize(50)
        assert admission.inflight_tokens == 60
        with pytest.raises(WireError) as caught:
            place.resize(51)
        assert caught.value.reason is Reason.QUEUE_FULL
        place.resize(5)
        assert admission.inflight_tokens == 15
    with admission.admit("alone", 10) as place:
        place.resize(1000)
        assert admission.inflight_tokens == 1000
    assert (admission.inflight_tokens, admission.inflight_requests) == (0, 0)


def test_the_faster_places_come_back_the_sooner_one_may_return():
    def retry_after_s(seconds_between_releases: float) -> float:
        clock = ManualClock()
        admission = Admission(max_requests=100, max_tokens=1000, clock=clock)
        for number in range(50):
            with admission.admit(str(number), 100):
                clock.advance(seconds_between_releases)
        with admission.admit("big", 1000), pytest.raises(WireError) as caught, admission.admit("next", 500):
            pass
        assert caught.value.retry_after_s is not None
        return caught.value.retry_after_s

    # 100 tokens a second come back: 500 take 5 s; the estimate decays over 10 s, hence the tolerance.
    assert retry_after_s(1.0) == pytest.approx(5.0, rel=0.1)
    assert retry_after_s(0.1) < retry_after_s(1.0) < retry_after_s(2.0)
