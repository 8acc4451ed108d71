"""Idle requests: nobody waits behind them, and they take nothing that others count on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from common.core import effects as fx
from common.core import events as ev
from common.core.defaults import MAX_WAITING_IDLE_BLOCKS
from common.core.ids import CallId, ServingMode
from common.core.params import CacheMode
from common.core.work import FinishReason, RequestSpec
from common.errors import Reason, WireError
from tests.core.samples import delta, request_spec
from tests.core.stage import Call, Stage, decoder, handle_of, only, prefiller, targets


def idle_spec(name: str, *, prompt: int = 8, max_tokens: int = 8) -> RequestSpec:
    """An audit's request."""
    return replace(request_spec(name, cache=CacheMode.NONE, prompt=prompt, max_tokens=max_tokens), idle=True)


def waits_for(stage: Stage) -> tuple[int, int]:
    """Live and idle blocks that wait."""
    view = stage.core.view()
    return view.queued_blocks + view.waiting_decode_blocks, view.waiting_idle_blocks


def test_an_idle_request_runs_on_a_cluster_at_rest() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder())
    call = only(stage.submit(idle_spec("audit", max_tokens=8)), fx.CallDecode)
    following = only(stage.run_block(call), fx.CallDecode)
    assert kinds_of_end(stage.run_block(following, FinishReason.LENGTH)) == [fx.FinishRequest]
    stage.assert_idle()


def kinds_of_end(effects: list[fx.SchedulerEffect]) -> list[type]:
    return [type(effect) for effect in effects if isinstance(effect, fx.FinishRequest | fx.FailRequest)]


def test_it_waits_while_its_worker_has_anything_else_to_do() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder(pages=64))
    live = only(stage.submit(request_spec("live", max_tokens=4)), fx.CallDecode)
    assert targets(stage.submit(idle_spec("audit", max_tokens=4))) == []
    assert waits_for(stage) == (0, 1)
    assert targets(stage.run_block(live, FinishReason.LENGTH)) == [("audit", "d")]


def test_between_its_blocks_it_lets_others_pass_however_late_they_came() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder(pages=4))
    audit = only(stage.submit(idle_spec("audit", max_tokens=8)), fx.CallDecode)
    assert targets(stage.submit(request_spec("b"))) == [], "no pages left"
    stage.now = 1000.0
    stage.submit(request_spec("c"))
    assert waits_for(stage) == (2, 0)
    assert targets(stage.run_block(audit)) == [("b", "d")]
    assert waits_for(stage) == (1, 1)


def test_a_live_head_that_must_wait_is_not_passed_though_the_idle_block_would_fit() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder("small", pages=3), decoder("large", pages=8))
    large = only(stage.submit(request_spec("a", prompt=24, max_tokens=4)), fx.CallDecode)
    assert large.target.worker_id == "large"
    assert targets(stage.submit(request_spec("b", prompt=24, max_tokens=4))) == [], "only the large one could take it"
    assert targets(stage.submit(idle_spec("audit", prompt=4, max_tokens=4))) == []
    assert waits_for(stage) == (1, 1)


def test_idle_requests_have_a_limit_of_their_own_and_take_no_place_of_others() -> None:
    stage = Stage(ServingMode.COLOCATED, max_queued_requests=1)
    for index in range(MAX_WAITING_IDLE_BLOCKS):
        stage.submit(idle_spec(f"audit{index}"))
    with pytest.raises(WireError) as refused:
        stage.submit(idle_spec("one too many"))
    assert refused.value.reason is Reason.QUEUE_FULL
    stage.submit(request_spec("live"))
    with pytest.raises(WireError):
        stage.submit(request_spec("second live"))
    assert waits_for(stage) == (1, MAX_WAITING_IDLE_BLOCKS)


@pytest.mark.parametrize("mode", list(ServingMode))
def test_a_cancelled_idle_request_leaves_its_line(mode: ServingMode) -> None:
    stage = Stage(mode)
    stage.submit(idle_spec("audit"))
    stage.feed(ev.RequestCancelled(request_id=idle_spec("audit").request_id))
    stage.assert_idle()
    assert waits_for(stage) == (0, 0)


@dataclass
class Story:
    """Random happenings to a stage, and a model of who waits that knows events and effects only."""

    stage: Stage
    rng: random.Random
    calls: dict[CallId, Call] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    idle_calls: int = 0

    def is_idle(self, request_id: str) -> bool:
        return self.specs[request_id].idle

    def submit(self, *, idle: bool) -> None:
        name = f"{'idle' if idle else 'live'}{len(self.specs)}"
        length = self.rng.choice((4, 8, 12))
        make = idle_spec if idle else request_spec
        spec = make(name, prompt=self.rng.randrange(1, 30), max_tokens=length)
        self.specs[name] = spec
        self.waiting.add(name)
        self.heed(self.stage.submit(spec))

    def happen(self) -> None:
        """One answer of a worker, or a failure, or time."""
        self.stage.now += self.rng.choice((0.0, 0.01, 0.3))
        if not self.calls or self.rng.random() < 0.1:
            self.heed(self.stage.feed(ev.Tick()))
            return
        call = self.calls.pop(self.rng.choice(sorted(self.calls)))
        request_id = call.work.attempt.request_id
        if self.rng.random() < 0.15:
            self.waiting.add(request_id)
            self.heed(
                self.stage.fail(call, self.rng.choice((Reason.NO_KV_PAGES, Reason.PEER_LOST, Reason.KV_CHECKSUM)))
            )
            return
        start = call.work.block_start_position
        positions = list(range(start, start + call.work.block_length_tokens))
        if isinstance(call, fx.CallPrefill):
            self.waiting.add(request_id)
            kv = None if call.work.cache_mode is CacheMode.NONE else handle_of(call)
            first = delta(request_id, 0, positions[:1])
            answer = ev.PrefillCompleted(call_id=call.call_id, first=first, kv=kv, completion=None)
            self.heed(self.stage.feed(answer))
            return
        last = positions[-1] + 1 >= self.specs[request_id].max_tokens
        self.heed(self.stage.stepped(call, 1, positions))
        self.waiting.add(request_id)
        self.heed(self.stage.completed(call, 1, FinishReason.LENGTH if last else None))

    def heed(self, effects: list[fx.SchedulerEffect]) -> None:
        """Follow what the core did: an idle call goes out only while no live request waits, to a worker at rest."""
        for effect in effects:
            if isinstance(effect, fx.FinishRequest | fx.FailRequest):
                self.waiting.discard(effect.request_id)
        for effect in effects:
            if not isinstance(effect, fx.CallPrefill | fx.CallDecode):
                continue
            request_id = effect.work.attempt.request_id
            if self.is_idle(request_id):
                self.idle_calls += 1
                live = {name for name in self.waiting if not self.is_idle(name)}
                assert not live, f"{request_id} passed {live}"
                others = [c for c in self.calls.values() if c.target == effect.target]
                assert not others, f"{request_id} joined {others}"
            self.waiting.discard(request_id)
            self.calls[effect.call_id] = effect


WORKERS = {
    ServingMode.COLOCATED: (decoder("d1"), decoder("d2")),
    ServingMode.DISAGGREGATED: (prefiller("p1"), prefiller("p2"), decoder("d1"), decoder("d2")),
    ServingMode.HYBRID: (prefiller("p1"), decoder("d1"), decoder("d2")),
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", list(ServingMode))
def test_no_idle_block_ever_goes_before_a_live_one_or_joins_one(mode: ServingMode, seed: int) -> None:
    story = Story(Stage(mode, *WORKERS[mode], overload_threshold_tokens=40), random.Random(seed))
    for _ in range(200):
        if story.rng.random() < 0.35:
            story.submit(idle=story.rng.random() < 0.5)
        else:
            story.happen()
    for _ in range(3000):
        if not len(story.stage.core.view().workers) or not story.stage.core.view().running_requests:
            break
        story.happen()
    assert story.stage.core.view().running_requests == 0, "idle ones come to an end too, once nothing else is left"
    assert story.idle_calls > 20


def test_a_busy_cluster_does_the_same_with_and_without_idle_requests() -> None:
    """Shares, turns and placement of live requests are untouched."""

    def placements(*, audits: bool) -> list[tuple[str, str]]:
        stage = Stage(ServingMode.COLOCATED, decoder("d1"), decoder("d2"), colocated_policy="round_robin")
        calls: list[Call] = []
        placed: list[tuple[str, str]] = []
        for index in range(60):
            tenant = ("a", "b", "c")[index % 3]
            told = stage.submit(replace(request_spec(f"live{index}", prompt=20, max_tokens=4), tenant=tenant))
            if audits and index >= 4:
                assert targets(stage.submit(idle_spec(f"audit{index}", max_tokens=4))) == []
            placed += targets(told)
            calls += [effect for effect in told if isinstance(effect, fx.CallDecode)]
        for _ in range(50):
            told = stage.run_block(calls.pop(0), FinishReason.LENGTH)
            placed += targets(told)
            calls += [effect for effect in told if isinstance(effect, fx.CallDecode)]
        return placed

    assert placements(audits=True) == placements(audits=False)
