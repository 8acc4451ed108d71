"""How the storms' waits are attributed to faults, on timelines worked out by hand."""

from __future__ import annotations

import math

from common.bench.percentile import percentile
from common.generation_input import GenerationInput
from sangam.v1 import inference_pb2, types_pb2
from tests.chaos.faults import Fault, FaultKind
from tests.chaos.recovery import recoveries
from tests.chaos.watched_request import Moment, WatchedRequest


def request(moments: list[tuple[float, int]], *, retried_blocks: frozenset[int] = frozenset()) -> WatchedRequest:
    """A finished request of blocks of 8 that had these many tokens at these times."""
    watched = WatchedRequest(GenerationInput(text="a", token_ids=None, max_tokens=24, block_length_tokens=8), "r")
    watched.moments = [Moment(at_s, tokens) for at_s, tokens in moments]
    watched.token_ids = [0] * moments[-1][1]
    blocks = [
        types_pb2.BlockPlacement(block=block, prefill_worker_id="p", attempts=1 + (block in retried_blocks))
        for block in range(3)
    ]
    watched.finished = inference_pb2.Finished(blocks=blocks)
    return watched


def fault(kind: FaultKind, at_s: float) -> Fault:
    return Fault(kind=kind, target="t", begun_s=at_s, ended_s=at_s)


def found(requests: list[WatchedRequest], faults: list[Fault]) -> dict[FaultKind, list[float]]:
    return {kind: waits for kind, waits in recoveries(requests, faults).items() if waits}


def test_a_dead_scheduler_touches_every_running_request() -> None:
    running = request([(0.0, 0), (1.0, 4), (3.5, 8), (4.0, 24)])
    ended = request([(0.0, 0), (1.5, 24)])
    later = request([(2.5, 0), (4.0, 24)])
    assert found([running, ended, later], [fault(FaultKind.SCHEDULER, 2.0)]) == {FaultKind.SCHEDULER: [1.5]}


def test_a_dead_worker_touches_those_whose_open_block_was_tried_again() -> None:
    moments = [(0.0, 0), (1.0, 9), (1.75, 16), (4.0, 24)]
    hit, missed = request(moments, retried_blocks=frozenset({1})), request(moments, retried_blocks=frozenset({2}))
    assert found([hit, missed], [fault(FaultKind.WORKER, 1.25)]) == {FaultKind.WORKER: [0.5]}


def test_a_dead_worker_may_have_touched_blocks_that_a_dead_gateway_knew_of() -> None:
    watched = request([(0.0, 0), (1.0, 4), (1.5, 12), (4.0, 24)])
    assert watched.finished is not None
    del watched.finished.blocks[:1]
    watched.finished.usage.MergeFrom(inference_pb2.Usage(carried_tokens=8, attempts=2))
    assert found([watched], [fault(FaultKind.WORKER, 1.25)]) == {FaultKind.WORKER: [0.25]}
    assert found([watched], [fault(FaultKind.WORKER, 2.0)]) == {}
    assert watched.retried_blocks == 0


def test_a_pause_holds_up_what_is_at_that_worker() -> None:
    here = request([(0.0, 0), (1.0, 4), (2.5, 24)])
    elsewhere = request([(0.0, 0), (1.0, 4), (2.5, 24)])
    elsewhere.finished = inference_pb2.Finished(blocks=[types_pb2.BlockPlacement(prefill_worker_id="q", attempts=1)])
    pause = Fault(kind=FaultKind.PAUSE, target="p", begun_s=1.25, ended_s=2.0)
    assert found([here, elsewhere], [pause]) == {FaultKind.PAUSE: [1.25]}


def test_a_pause_that_had_begun_holds_up_what_is_sent_there_for_as_long_as_it_was_there() -> None:
    sent_there = request([(0.0, 0), (1.5, 8), (3.0, 24)], retried_blocks=frozenset({1}))
    pause = Fault(kind=FaultKind.PAUSE, target="p", begun_s=1.25, ended_s=2.5)
    over = Fault(kind=FaultKind.PAUSE, target="p", begun_s=0.25, ended_s=1.5)
    assert found([sent_there], [fault(FaultKind.WORKER, 1.75), pause]) == {FaultKind.PAUSE: [0.25, 1.5]}
    assert found([sent_there], [fault(FaultKind.WORKER, 1.75), over]) == {
        FaultKind.PAUSE: [1.25],
        FaultKind.WORKER: [1.25],
    }


def test_a_wait_with_several_faults_counts_for_the_gravest_from_its_beginning() -> None:
    waiting = request([(0.0, 0), (1.0, 8), (6.0, 24)], retried_blocks=frozenset({1}))
    faults = [
        fault(FaultKind.WORKER, 1.5),
        fault(FaultKind.SCHEDULER, 2.0),
        fault(FaultKind.KV_STORE, 2.5),
        fault(FaultKind.SCHEDULER, 3.0),
    ]
    assert found([waiting], faults) == {FaultKind.SCHEDULER: [4.0]}


def test_percentiles_are_values_that_were_seen() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))
