"""`sangam status` and how it finds its cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from common.cli.cluster_metrics import metric_facts, render_metrics
from common.cli.main import main
from common.cli.run_dir import (
    NoCluster,
    RunningCluster,
    find_run_dir,
    find_scheduler,
    findable,
    is_gateway_of_mine,
    new_run_dir,
    running_clusters,
    runs_dir,
)
from common.cli.status import facts, render, service_addresses, unfree_pages
from common.cli.table import render_table
from common.errors import ConfigError
from common.metrics.readings import Distribution, Reading
from sangam.v1 import scheduler_pb2, types_pb2

STATE = scheduler_pb2.GetClusterStateResponse(
    mode=types_pb2.SERVING_MODE_HYBRID,
    queued_blocks=4,
    waiting_decode_blocks=2,
    running_requests=9,
    ended_requests=100,
    overload_threshold_tokens=16384,
    overload_threshold_adapts=True,
    workers=[
        scheduler_pb2.WorkerState(
            life=types_pb2.WorkerLife(worker_id="decode-0", incarnation=2**60),
            role=types_pb2.WORKER_ROLE_DECODE,
            address="127.0.0.1:1234",
            pages_total=64,
            pages_free=40,
            outstanding_prefill_tokens=700,
            active_decodes=3,
            token_budget_tokens=1024,
            report=types_pb2.IterationReport(
                iteration=7,
                deficit_tokens=224,
                free_pages=38,
                queued_prefills=1,
                token_budget_tokens=1500,
                token_budget_adapts=True,
                decode_gap_s=0.0421,
                wanted_blocks=6,
                wanted_prefill_tokens=150,
            ),
        ),
        scheduler_pb2.WorkerState(
            life=types_pb2.WorkerLife(worker_id="prefill-0", incarnation=5),
            role=types_pb2.WORKER_ROLE_PREFILL,
            address="127.0.0.1:1235",
            pages_total=32,
            pages_free=32,
            draining=True,
        ),
    ],
)


def test_json_holds_the_facts_as_numbers() -> None:
    document = json.loads(json.dumps(facts(STATE)))
    assert document["mode"] == "hybrid"
    assert (document["queued_blocks"], document["waiting_decode_blocks"], document["running_requests"]) == (4, 2, 9)
    decode, prefill = document["workers"]
    assert decode["incarnation"] == 2**60
    assert (decode["pages_free"], decode["pages_total"], decode["outstanding_prefill_tokens"]) == (40, 64, 700)
    assert (decode["active_decodes"], decode["reported"]["deficit_tokens"], decode["role"]) == (3, 224, "decode")
    assert (decode["token_budget_tokens"], decode["reported"]["token_budget_tokens"]) == (1024, 1500)
    assert decode["reported"]["token_budget_adapts"] and decode["reported"]["decode_gap_s"] == 0.0421
    assert (decode["reported"]["wanted_blocks"], decode["reported"]["wanted_prefill_tokens"]) == (6, 150)
    assert (document["overload_threshold_tokens"], document["overload_threshold_adapts"]) == (16384, True)
    assert prefill["reported"] is None and prefill["draining"]


def test_table_shows_every_worker_on_a_line() -> None:
    lines = render(STATE).splitlines()
    assert "9 requests running, 4 blocks queued for prefill, 2 waiting for decode memory" in lines[0]
    assert lines[0].endswith("; overload threshold 16384 (auto)")
    assert lines[2].split() == [
        *("decode-0", "decode", str(2**60), "127.0.0.1:1234", "40", "64", "700"),
        *("1500", "auto,", "6", "blocks", "224", "3", "42", "1", "serving"),
    ]
    assert lines[3].split()[-1] == "draining"


def test_parked_blocks_and_divergences_are_shown_when_there_are_any() -> None:
    state = scheduler_pb2.GetClusterStateResponse()
    state.CopyFrom(STATE)
    assert "fit no live worker" not in render(state) and "differed" not in render(state)
    assert (facts(state)["parked_blocks"], facts(state)["replay_divergences"]) == (0, 0)
    state.parked_blocks, state.replay_divergences = 3, 5
    (first, *_) = render(state).splitlines()
    assert first.endswith("; 3 of the queued blocks fit no live worker; 5 tokens differed when repeated")
    assert (facts(state)["parked_blocks"], facts(state)["replay_divergences"]) == (3, 5)


def test_metrics_are_shown_leaks_first_and_a_silent_service_is_said_so() -> None:
    histogram = Distribution(count=4, sum=2.0, bounds=(1.0,), bucket_counts=(4, 0))
    cluster = {
        "scheduler": [
            Reading(name="sangam_leaked_pages", kind="gauge", labels=(), value=3),
            Reading(name="sangam_replay_divergence_total", kind="counter", labels=(), value=2.0),
            Reading(name="sangam_example_s", kind="histogram", labels=(("kind", "a"),), value=histogram),
        ],
        "gateway": None,
    }
    lines = render_metrics(cluster).splitlines()
    assert lines[1].split() == ["scheduler", "3", "0", "0", "0", "2"]
    assert lines[2].split() == ["gateway", *["no", "answer"] * 5]
    assert lines[4].split(maxsplit=2) == ["scheduler", "sangam_example_s{kind=a}", "4 values, mean 0.5"]
    document = json.loads(json.dumps(metric_facts(cluster)))
    assert document["gateway"] is None
    assert document["scheduler"][2]["value"] == {"count": 4, "sum": 2.0, "bounds": [1.0], "bucket_counts": [4, 0]}
    assert document["scheduler"][0] == {"name": "sangam_leaked_pages", "kind": "gauge", "labels": {}, "value": 3}


def test_services_are_named_or_found_in_the_run_folder() -> None:
    workers = {"decode-0": "127.0.0.1:1234", "prefill-0": "127.0.0.1:1235"}
    unknown = {"gateway": "", "kv_store": ""}
    found = service_addresses(STATE, scheduler="127.0.0.1:77", named=unknown)
    assert found == {"scheduler": "127.0.0.1:77", **workers}
    running_cluster_file(os.getpid(), "127.0.0.1:77")
    found = service_addresses(STATE, scheduler="127.0.0.1:77", named={"gateway": "", "kv_store": "10.0.0.1:2"})
    assert found == {"scheduler": "127.0.0.1:77", "gateway": "127.0.0.1:1", "kv_store": "10.0.0.1:2", **workers}
    two = service_addresses(STATE, scheduler="127.0.0.1:77,127.0.0.1:78", named=unknown)
    assert two == {"scheduler-0": "127.0.0.1:77", "scheduler-1": "127.0.0.1:78", **workers}
    with pytest.raises(ConfigError, match="--kv-store: must be host:port, not 'x'"):
        service_addresses(STATE, scheduler="127.0.0.1:77", named={"kv_store": "x"})


def test_empty_cluster_is_said_in_words() -> None:
    empty = scheduler_pb2.GetClusterStateResponse(mode=types_pb2.SERVING_MODE_COLOCATED)
    assert "no worker is registered" in render(empty)


def test_pages_in_use_are_the_larger_of_ledger_and_report() -> None:
    assert [unfree_pages(worker) for worker in STATE.workers] == [26, 0]


def test_numbers_are_right_aligned() -> None:
    assert render_table(("name", "n"), [("a", "5"), ("b", "1234")], indent="").splitlines() == [
        "name     n",
        "a        5",
        "b     1234",
    ]


def test_scheduler_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", "127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert error == (
        "sangam status: error: no scheduler answers at 127.0.0.1:9 (`sangam up` prints the right address)\n"
    )
    assert main(["drain", "w", "--address", "127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("sangam drain: error: no scheduler answers at 127.0.0.1:9")


def test_malformed_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("nowhere", "host:", ":1", "host:99999"):
        assert main(["status", "--address", address]) == 2
        allowed = "host:port, or several different ones with commas"
        assert capsys.readouterr().err == f"sangam status: error: --address: must be {allowed}, not {address!r}\n"


def running_cluster_file(pid: int, scheduler: str) -> Path:
    run_dir = runs_dir() / str(pid)
    run_dir.mkdir(parents=True)
    RunningCluster(pid=pid, gateway="127.0.0.1:1", scheduler=scheduler, mode="hybrid").write(run_dir)
    return run_dir


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANGAM_CACHE_DIR", str(tmp_path))


def test_the_one_running_cluster_is_found() -> None:
    with pytest.raises(NoCluster, match="sangam up"):
        find_scheduler("")
    running_cluster_file(os.getpid(), "127.0.0.1:77")
    assert find_scheduler("") == "127.0.0.1:77"
    assert find_scheduler("10.0.0.1:5") == "10.0.0.1:5"


def test_several_running_clusters_are_listed() -> None:
    running_cluster_file(os.getpid(), "127.0.0.1:77")
    running_cluster_file(os.getppid(), "127.0.0.1:78")
    with pytest.raises(NoCluster, match=r"127\.0\.0\.1:77.*127\.0\.0\.1:78|127\.0\.0\.1:78.*127\.0\.0\.1:77"):
        find_scheduler("")


def test_folders_of_ended_runs_are_removed() -> None:
    # No process can have this number: it is above the kernel's limit.
    ended = running_cluster_file(2**22 + 1, "127.0.0.1:79")
    with pytest.raises(NoCluster):
        find_scheduler("")
    assert new_run_dir().is_dir()
    assert not ended.exists()


def test_a_run_folder_elsewhere_is_found_while_its_cluster_runs(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with findable(elsewhere):
        elsewhere.mkdir()
        RunningCluster(pid=os.getpid(), gateway="127.0.0.1:2", scheduler="127.0.0.1:80", mode="hybrid").write(elsewhere)
        assert find_scheduler("") == "127.0.0.1:80"
        assert is_gateway_of_mine("127.0.0.1:2")
        assert find_run_dir(None).resolve() == elsewhere
    assert running_clusters() == []
    assert elsewhere.is_dir()


def test_the_link_to_an_ended_run_elsewhere_is_removed_and_nothing_behind_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    log = elsewhere / "gateway.log"
    log.touch()
    runs_dir().mkdir()
    link = runs_dir() / str(2**22 + 1)
    link.symlink_to(elsewhere)
    assert new_run_dir().is_dir()
    assert not link.is_symlink() and log.exists()


def test_a_run_folder_of_the_usual_place_needs_no_link() -> None:
    run_dir = new_run_dir()
    with findable(run_dir):
        assert not run_dir.is_symlink()
    assert run_dir.is_dir()


def test_a_cluster_runs_without_a_link_where_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SANGAM_CACHE_DIR", str(tmp_path / "file"))
    with findable(tmp_path / "elsewhere"):
        assert running_clusters() == []
