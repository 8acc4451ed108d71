"""What a worker's instruments say of iterations and fetches."""

from __future__ import annotations

from dataclasses import replace

from common.core.ids import Role
from common.core.work import IterationReport, KvTransfer
from common.errors import Reason
from common.worker.measures import WorkerMeasures
from tests.metrics.measured import Growth, distribution_of, value_of

REPORT = IterationReport(
    iteration=1,
    duration_s=0.5,
    decode_tokens=64,
    prefill_tokens_admitted=0,
    deficit_tokens=224,
    free_pages=30,
    active_decodes=2,
    queued_prefills=3,
    queued_prefill_tokens=900,
    retained_blocks=4,
    token_budget_tokens=1500,
    token_budget_adapts=True,
    decode_gap_s=0.04,
    wanted_blocks=6,
)


def test_an_iteration_counts_once_however_often_it_is_reported() -> None:
    measures, growth = WorkerMeasures(Role.DECODE), Growth()
    measures.report(REPORT)
    measures.report(replace(REPORT, free_pages=64))
    assert growth.of("sangam_iteration_s", kind="decode") == 1
    assert growth.of("sangam_iteration_tokens_total", kind="decode") == 64
    assert value_of("sangam_free_pages") == 64, "the newest report counts"


def test_iterations_are_told_apart_by_what_they_held() -> None:
    measures, growth = WorkerMeasures(Role.DECODE), Growth()
    measures.report(replace(REPORT, decode_tokens=0, prefill_tokens_admitted=700))
    measures.report(replace(REPORT, iteration=2, prefill_tokens_admitted=300))
    measures.report(replace(REPORT, iteration=3))
    kinds = {kind: growth.of("sangam_iteration_s", kind=kind) for kind in ("prefill", "mixed", "decode")}
    assert kinds == {"prefill": 1, "mixed": 1, "decode": 1}
    assert growth.of("sangam_iteration_tokens_total", kind="prefill") == 1000
    assert growth.of("sangam_iteration_tokens_total", kind="decode") == 128


def test_a_decode_worker_shows_budget_deficit_and_gap() -> None:
    WorkerMeasures(Role.DECODE).report(REPORT)
    expected = {"token_budget_tokens": 1500, "deficit_tokens": 224, "decode_gap_s": 0.04, "wanted_blocks": 6}
    assert {name: value_of(f"sangam_{name}") for name in expected} == expected
    assert value_of("sangam_active_decodes") == 2
    assert (value_of("sangam_queued_prefills"), value_of("sangam_queued_prefill_tokens")) == (3, 900)


def test_a_prefill_worker_shows_what_it_retains() -> None:
    WorkerMeasures(Role.PREFILL).report(REPORT)
    assert value_of("sangam_retained_blocks") == 4


def test_fetches_are_told_apart_by_overlap_and_path_and_failures_by_reason() -> None:
    measures, growth = WorkerMeasures(Role.DECODE), Growth()
    before_s = distribution_of("sangam_kv_transfer_exposed_s", overlap="yes").sum
    measures.fetched(KvTransfer(transfer_s=0.5, exposed_s=0.125, transfer_bytes=640), path="direct", early=True)
    measures.fetched(KvTransfer(transfer_s=0.25, exposed_s=0.25, transfer_bytes=60), path="tcp", early=False)
    measures.fetch_failed(Reason.PEER_LOST, early=True)
    measures.fetch_failed(Reason.KV_NOT_FOUND, early=True)
    assert distribution_of("sangam_kv_transfer_exposed_s", overlap="yes").sum - before_s == 0.125
    assert growth.of("sangam_kv_transfer_s", overlap="yes") == growth.of("sangam_kv_transfer_s", overlap="no") == 1
    assert growth.of("sangam_kv_transfer_bytes_total", path="direct") == 640
    assert growth.of("sangam_kv_transfer_bytes_total", path="tcp") == 60
    assert growth.of("sangam_kv_fetch_failures_total", reason="PEER_LOST") == 1
    assert growth.of("sangam_kv_fetch_failures_total", reason="KV_NOT_FOUND") == 0, "its prefill kept nothing"
