"""The report of adaptive against fixed budgets: every run is there, repeats exactly, and is not run twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.bench import budget
from common.bench.budget import BUDGETS, ROWS, Case, Outcome, lines_of, main, options_of, plan, render, simulate
from common.sim.options import OPTIONS

SMALL = ("--requests", "6", "--seeds", "1", "--row", "Dream arXiv", "--dispatch", "late")


def case(*, row: str = "Dream arXiv", dispatch: str = "late", budget: str = "auto", seed: int = 0) -> Case:
    return Case(row=row, dispatch=dispatch, budget=budget, seed=seed, requests=6)


def outcome(mean_s: float, p99_s: float) -> Outcome:
    return Outcome(mean_s=mean_s, p99_s=p99_s, effects_hash="")


def test_every_row_is_made_of_options_of_simulate() -> None:
    assert all(set(options_of(case(row=row))) <= set(OPTIONS) for row in ROWS)


def test_all_budgets_meet_the_same_requests_and_whole_tables_come_first() -> None:
    cases = plan(rows=ROWS, dispatches=["late", "eager"], budgets=BUDGETS, seeds=2, requests=9)
    assert len(cases) == len(set(cases)) == 4 * 2 * 6 * 2
    assert [one.seed for one in cases] == [0] * 48 + [1] * 48


def test_a_run_repeats_exactly() -> None:
    assert simulate(case()) == simulate(case())


def test_figures_are_means_over_seeds_and_ratios_are_to_the_best_fixed_budget_of_each_figure() -> None:
    outcomes = {
        case(budget="512"): outcome(4.0, 9.0),
        case(budget="512", seed=1): outcome(6.0, 11.0),
        case(budget="1024"): outcome(3.0, 19.0),
        case(budget="1024", seed=1): outcome(5.0, 21.0),
        case(): outcome(2.0, 8.0),
        case(seed=1): outcome(4.0, 10.0),
    }
    (line,) = lines_of(outcomes)
    assert (line.mean_s, line.p99_s) == (
        {"512": 5.0, "1024": 4.0, "auto": 3.0},
        {"512": 10.0, "1024": 20.0, "auto": 9.0},
    )
    assert (line.ratio(line.mean_s), line.ratio(line.p99_s)) == (0.75, 0.9)
    assert render(outcomes).splitlines()[1].split()[-2:] == ["0.750", "0.900"]


@pytest.mark.parametrize("flag", ["--seeds", "--requests"])
def test_a_number_that_is_none_is_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        main([flag, "0"])
    assert refusal.value.code == 2 and f"{flag}: '0' is not allowed" in capsys.readouterr().err


def test_the_report_ends_well_and_a_ledger_spares_the_second_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    assert main([*SMALL, "--budget", "1024", "--budget", "auto", "--ledger", str(ledger)]) == 0
    first = capsys.readouterr().out
    assert "Dream arXiv" in first and len(first.splitlines()) == 4
    assert [json.loads(line)["case"]["budget"] for line in ledger.read_text().splitlines()] == ["1024", "auto"]
    monkeypatch.delattr(budget, "simulate")
    assert main([*SMALL, "--budget", "1024", "--budget", "auto", "--ledger", str(ledger)]) == 0
    assert capsys.readouterr().out == first
