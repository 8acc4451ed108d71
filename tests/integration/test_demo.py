"""The two commands that start clusters and report on them, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common.bench.overhead_programs import program_requests
from common.cli.demo_questions import demo_questions
from common.cli.supervisor import child_environment
from tests.integration.cluster_help import processes_of, random_model


def sangam(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "common.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**child_environment(), "SANGAM_CACHE_DIR": str(cache)},
    )


def test_demo_answers_rightly_checks_every_answer_and_leaves_nothing(tmp_path: Path) -> None:
    done = sangam(tmp_path, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith("  yes")]
    assert [row[-2:] for row in rows] == [["yes", "yes"]] * len(demo_questions())
    assert {row[2] for row in rows} == {"none,", "prefix,", "dual,"}
    assert "all went right; nothing is left running" in done.stdout
    assert processes_of(tmp_path) == []


def test_demo_of_the_trained_model_fails_when_an_answer_is_wrong(tmp_path: Path) -> None:
    done = sangam(tmp_path, "demo", "--model", str(random_model(tmp_path / "sangam-tiny")))
    assert done.returncode == 1
    assert "is not the right answer" in done.stderr
    assert "0 of 10 answers are right" in done.stdout


def test_overhead_report_compares_both_sides_request_by_request(tmp_path: Path) -> None:
    modes = ("hybrid", "colocated")
    done = sangam(tmp_path, "bench-overhead", "--tables", "warm", "--modes", *modes, "--requests", "1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")][1:] == [
        mode for mode in modes for _ in range(5)
    ]
    assert processes_of(tmp_path) == []


def test_overhead_report_compares_the_programs_themselves(tmp_path: Path) -> None:
    done = sangam(tmp_path, "bench-overhead", "--tables", "programs", "--modes", "disaggregated", "--runs", "1")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("  disaggregated")]
    assert [row.split("  ")[2].strip() for row in rows] == [*program_requests(), "all of these"]
    assert all(row.endswith(("  yes", "  no")) for row in rows)
    assert processes_of(tmp_path) == []


def test_demo_refuses_a_bad_checkpoint_before_it_starts_anything(tmp_path: Path) -> None:
    done = sangam(tmp_path, "demo", "--model", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"sangam demo: error: {tmp_path / 'none'}")
    assert done.stderr.count("\n") == 1
