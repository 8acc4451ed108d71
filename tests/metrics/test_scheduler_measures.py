"""What the scheduler's instruments say of blocks, retries and workers."""

from __future__ import annotations

import pytest

from common.clock import ManualClock
from common.core import effects as fx
from common.core.ids import ServingMode
from common.core.work import FinishReason
from common.errors import Reason
from services.scheduler.measures import SchedulerMeasures
from tests.core.samples import request_spec
from tests.core.stage import Stage, decoder, only, prefiller
from tests.metrics.measured import Growth, distribution_of, value_of


def measures_of(stage: Stage) -> SchedulerMeasures:
    return SchedulerMeasures(stage.core, ManualClock())


def test_a_committed_block_counts_its_forwards_and_its_wait() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder())
    measures, growth, waited_s = measures_of(stage), Growth(), distribution_of("sangam_block_queue_s").sum
    call = only(stage.submit(request_spec("a", max_tokens=4)), fx.CallDecode)
    waiting = stage.submit(request_spec("b", prompt=60, max_tokens=4))
    assert not [effect for effect in waiting if isinstance(effect, fx.CallDecode)], "no room for it yet"
    stage.now = 2.0
    for step, position in enumerate(range(4)):
        stage.stepped(call, step, [position])
    told = stage.completed(call, 3, FinishReason.LENGTH)
    other = only(told, fx.CallDecode)
    stage.stepped(other, 0, [0, 1, 2, 3])
    told += stage.completed(other, 0, FinishReason.LENGTH)
    measures.observe(told)
    assert growth.of("sangam_blocks_total") == 2
    assert growth.of("sangam_forwards_total", kind="prefill") == 2
    assert growth.of("sangam_forwards_total", kind="decode") == 3
    assert growth.of("sangam_overflowed_prefills_total") == 0
    assert growth.of("sangam_block_queue_s") == growth.of("sangam_block_decode_s") == 2
    assert distribution_of("sangam_block_queue_s").sum - waited_s == pytest.approx(2.0)


def test_overflowed_prefills_are_counted() -> None:
    stage = Stage(ServingMode.HYBRID, decoder())
    measures, growth = measures_of(stage), Growth()
    call = only(stage.submit(request_spec("a", max_tokens=4)), fx.CallDecode)
    measures.observe(stage.run_block(call, FinishReason.LENGTH))
    assert (growth.of("sangam_blocks_total"), growth.of("sangam_overflowed_prefills_total")) == (1, 1)


def test_retries_are_counted_by_what_ended_the_attempt_before() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder("d1"), decoder("d2"), max_attempts=3)
    measures, growth = measures_of(stage), Growth()
    call = only(stage.submit(request_spec("a")), fx.CallDecode)
    call = only(stage.fail(call, Reason.KV_CHECKSUM), fx.CallDecode)
    measures.sample()
    stage.lose(decoder(call.target.worker_id))
    stage.tick(100.0)
    for _ in range(2):
        measures.sample()
    assert growth.of("sangam_blocks_retried_total", reason="KV_CHECKSUM") == 1
    assert growth.of("sangam_blocks_retried_total", reason="PEER_LOST") == 1


def test_the_last_attempt_is_not_followed_by_a_retry() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder(), max_attempts=1)
    measures, growth = measures_of(stage), Growth()
    call = only(stage.submit(request_spec("a")), fx.CallDecode)
    only(stage.fail(call, Reason.STALE_ATTEMPT), fx.FailRequest)
    measures.sample()
    assert growth.of("sangam_blocks_retried_total", reason="STALE_ATTEMPT") == 0


def test_early_decodes_are_counted_and_those_that_were_for_nothing() -> None:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller(), decoder(), kv_overlap=True)
    measures, growth = measures_of(stage), Growth()
    for name in ("a", "b"):
        prefill = only(stage.submit(request_spec(name, max_tokens=4)), fx.CallPrefill)
        if name == "a":
            stage.prefill_finished(prefill, [0, 1, 2, 3], FinishReason.LENGTH)
    for _ in range(2):
        measures.sample()
    assert growth.of("sangam_early_decodes_total") == 2
    assert growth.of("sangam_early_decodes_unused_total") == 1


def test_a_replayed_token_that_differs_is_counted_once_though_sampled_often() -> None:
    stage = Stage(ServingMode.COLOCATED, decoder())
    measures, growth = measures_of(stage), Growth()
    call = only(stage.submit(request_spec("a", shown=((0, 49_999),))), fx.CallDecode)
    stage.stepped(call, 0, [0, 1])
    for _ in range(3):
        measures.sample()
    assert growth.of("sangam_replay_divergence_total") == 1


def test_workers_have_a_series_each_and_leave_none_behind() -> None:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller("p1"), prefiller("p2"), decoder())
    measures = measures_of(stage)
    stage.submit(request_spec("a", prompt=8, max_tokens=4))
    measures.sample()
    loads = {worker: value_of("sangam_outstanding_prefill_tokens", worker_id=worker) for worker in ("p1", "p2")}
    assert sorted(loads.values()) == [0, 12]
    assert value_of("sangam_live_workers", role="prefill") == 2
    loaded = max(loads, key=lambda worker: loads[worker])
    stage.lose(prefiller(loaded))
    measures.sample()
    assert value_of("sangam_live_workers", role="prefill") == 1
    assert value_of("sangam_outstanding_prefill_tokens", worker_id=loaded) == 0
