"""Whole runs: what must hold in any of them, and times that can be worked out by hand."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from common.core.ids import Role, ServingMode
from common.core.scheduler_config import SchedulerConfig
from common.sim.cluster import SimCluster, SimResult
from common.sim.config import SimConfig, default_worker_config
from common.sim.cost_model import LinearCost
from common.sim.data_plane import KvLink
from common.sim.metrics import summarise
from common.sim.network import NetworkSettings
from common.sim.reveal import RevealModel
from common.workload.arrivals import PoissonArrivals
from common.workload.workload import NAMED_LENGTHS, RequestShape, draw_requests
from tests.sim.runs import simulate

REPOSITORY = Path(__file__).parents[2]
MODES = [mode.value for mode in ServingMode]
STEP_S, PREFILL_TOKEN_S = 0.010, 0.001
LINK = KvLink(setup_s=0.5, bytes_per_s=1000.0, kv_bytes_per_token=10, parts=4)


def by_hand(
    mode: ServingMode, *shapes: tuple[float, int, int], tau: int = 1024, kv_overlap: bool = False, link: KvLink = LINK
) -> SimResult:
    """One worker of each role, round prices, a free network, one token per forward and blocks of 4."""
    config = SimConfig(
        scheduler=SchedulerConfig(mode=mode, kv_overlap=kv_overlap),
        worker=default_worker_config(role=Role.DECODE, pages_total=1000, token_budget_tokens=tau),
        prefill_workers=0 if mode is ServingMode.COLOCATED else 1,
        decode_workers=1,
        cost=LinearCost(launch_s=STEP_S, prefill_token_s=PREFILL_TOKEN_S, decode_token_s=0.0),
        tokens_per_step=1.0,
        kv_link=link,
        max_canvas_tokens=4096,
        block_length_tokens=4,
        network=NetworkSettings(delay_s=0.0),
    )
    requests = [RequestShape(arrival_s=at_s, prompt_tokens=p, output_tokens=o) for at_s, p, o in shapes]
    return SimCluster(config, requests).run()


def test_one_colocated_request_takes_its_forwards():
    result = by_hand(ServingMode.COLOCATED, (2.0, 92, 8))
    # Two blocks: a prefill of the whole canvas of 100 that reveals one token, then three decode steps.
    assert result.span_s - 2.0 == pytest.approx(2 * (4 * STEP_S + 100 * PREFILL_TOKEN_S))
    record = next(iter(result.recorder.requests.values()))
    assert (record.blocks, record.forwards, record.queue_s) == (2, 8, 0.0)
    assert record.decode_s == pytest.approx(2 * 3 * STEP_S)
    assert record.prefill_s == pytest.approx(2 * (STEP_S + 0.1))
    assert record.first_commit_s == pytest.approx(2.0 + STEP_S + 0.1)
    assert list(result.recorder.decode_gaps_s) == pytest.approx([STEP_S] * 4)


def test_one_disaggregated_request_also_waits_for_its_kv():
    result = by_hand(ServingMode.DISAGGREGATED, (0.0, 96, 4))
    # 100 tokens of 10 bytes over 1000 bytes/s, after half a second of setup.
    assert list(result.recorder.transfers_s) == pytest.approx([1.5])
    assert result.span_s == pytest.approx(STEP_S + 0.1 + 1.5 + 3 * STEP_S)
    forwards = {name: len(forwards) for name, forwards in result.recorder.forwards.items()}
    assert {result.roles[name]: count for name, count in forwards.items()} == {Role.PREFILL: 1, Role.DECODE: 3}


def test_two_transfers_share_a_link_in_turn():
    result = by_hand(ServingMode.DISAGGREGATED, (0.0, 96, 4), (0.0, 96, 4))
    # The first is prefilled alone at once, its bytes flow from 0.11 to 1.11; the second is ready at 0.22, and waits.
    assert list(result.recorder.transfers_s) == pytest.approx([1.5, 1.11 - 0.22 + 1.5])


@pytest.mark.parametrize(
    ("setup_s", "prompt", "exposed_s"),
    # A forward of 1.01 s, or 0.11 s, computes 4 parts of 2.5 s, or of 0.25 s, in all 10 s and 1 s on their way.
    [(0.5, 996, 10.0 + 0.5 - 1.01), (0.0, 96, 1.0 - 0.11), (0.05, 96, 1.05 - 0.11)],
)
def test_what_a_forward_hides_of_a_transfer_is_not_exposed(setup_s: float, prompt: int, exposed_s: float):
    result = by_hand(ServingMode.DISAGGREGATED, (0.0, prompt, 4), kv_overlap=True, link=replace(LINK, setup_s=setup_s))
    assert list(result.recorder.transfers_s) == pytest.approx([exposed_s])
    assert result.span_s == pytest.approx(STEP_S + (prompt + 4) * PREFILL_TOKEN_S + exposed_s + 3 * STEP_S)


def test_a_transfer_ends_one_part_after_the_forward_at_the_earliest():
    fast = replace(LINK, setup_s=0.0, bytes_per_s=20_000.0)
    result = by_hand(ServingMode.DISAGGREGATED, (0.0, 96, 4), kv_overlap=True, link=fast)
    # 0.05 s of bytes in 4 parts fit into a forward of 0.11 s, all but the last.
    assert list(result.recorder.transfers_s) == pytest.approx([0.0125])


def test_a_small_budget_makes_a_prefill_wait_for_a_decode():
    # The second request meets a decode of 4 tokens per step: 46 a step are left of 50, and 80 are saved up after two.
    result = by_hand(ServingMode.COLOCATED, (0.0, 92, 4), (0.111, 76, 4), tau=50)
    second = list(result.recorder.requests.values())[1]
    batches = [(f.decode_tokens, f.prefill_tokens) for f in next(iter(result.recorder.forwards.values()))]
    assert batches[:4] == [(0, 96), (4, 0), (4, 0), (4, 80)]
    assert second.queue_s == pytest.approx(0.126 - 0.111)


@pytest.mark.parametrize("mode", MODES)
def test_every_request_ends_once_with_all_its_blocks(mode: str):
    result = simulate(mode=mode)
    for record in result.recorder.requests.values():
        assert (record.outcome, record.ends) == ("finished", 1)
        assert record.blocks == -(-record.shape.output_tokens // 32)
        assert record.forwards >= 2 * record.blocks - 1
    metrics = summarise(result)
    assert metrics.finished == 30
    assert (metrics.overflow_share > 0) <= (mode == "hybrid")
    assert (metrics.kv_transfer.count > 0) == (mode != "colocated")


def test_a_burst_overflows_under_a_small_threshold_and_never_without_leave():
    assert summarise(simulate(mode="hybrid", overload_threshold=256, qps=200)).overflow_share > 0.05
    assert summarise(simulate(mode="hybrid", overload_threshold=256, qps=200, overflow="off")).overflow_share == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_has_the_same_hash(mode: str):
    faults = "crash=2,hang=1,duplicate=0.05,reorder=0.1"
    first, again = (simulate(mode=mode, seed=5, faults=faults) for _ in range(2))
    assert first.digest == again.digest
    assert first.digest != simulate(mode=mode, seed=6, faults=faults).digest


def test_the_hash_does_not_depend_on_the_process():
    words = ["simulate", "--requests", "8", "--output-tokens", "fixed:40", "--faults", "crash=2,reorder=0.1", "--json"]
    hashes = set()
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "common.cli", *words]
        done = subprocess.run(command, capture_output=True, check=True, env=env, cwd=REPOSITORY)
        hashes.add(json.loads(done.stdout)["runs"][0]["metrics"]["effects_hash"])
    assert len(hashes) == 1


def test_what_a_run_is_made_of_is_the_same_on_any_machine():
    # Written down once, on another machine than yours: logarithms and exponentials are where machines could differ.
    shapes = draw_requests(arrivals=PoissonArrivals(6.5), lengths=NAMED_LENGTHS["sharegpt"], requests=2000, seed=0)
    reveal = RevealModel(3.3)
    numbers = [(shape.arrival_s, shape.prompt_tokens, shape.output_tokens) for shape in shapes]
    text = repr((numbers, [reveal.count(seed, 0, 0) for seed in range(1000)]))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "9136eb15a3decf4e"


def test_cells_share_the_load():
    result = simulate(mode="colocated", cells=4, prefill_workers=0, decode_workers=1, requests=80, qps=30)
    assert summarise(result).finished == 80
    prefills = Counter[str]()
    for worker_id, forwards in result.recorder.forwards.items():
        prefills[worker_id[:4]] += sum(forward.prefill_tokens for forward in forwards)
    assert len(prefills) == 4
    assert max(prefills.values()) < 2 * min(prefills.values())
