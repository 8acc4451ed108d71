"""The adaptive token budget against fixed ones, on the calibrated rows of the paper's table (docs/simulator.md).

`python -m common.bench.budget` simulates each row with each budget, late and eager binding, and several seeds; `make
bench-budget` runs it. Every budget meets the same requests: a seed fixes arrivals, lengths and tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.cli.plotting import check_plotting
from common.cli.progress import Progress
from common.cli.table import render_table
from common.core.options import Dispatch
from common.sim.cluster import SimCluster
from common.sim.metrics import summarise
from common.sim.options import build_run
from common.sim.settings import AUTO, Settings

ROWS: Mapping[str, Mapping[str, str]] = {
    "LLaDA ShareGPT": {
        **{"preset": "h100-llada-8b", "workload": "sharegpt", "qps": "6.5", "colocated-policy": "round_robin"},
        **{"sustained-tflops": "289", "tokens-per-step": "2.96", "output-scale": "0.535"},
    },
    "Dream ShareGPT": {
        **{"preset": "h100-dream-7b", "workload": "sharegpt", "qps": "7", "colocated-policy": "round_robin"},
        **{"sustained-tflops": "332", "tokens-per-step": "2.68", "output-scale": "0.574"},
    },
    "LLaDA arXiv": {
        **{"preset": "h100-llada-8b", "workload": "arxiv", "qps": "7.5"},
        **{"sustained-tflops": "415", "tokens-per-step": "2.53", "output-scale": "0.21"},
    },
    "Dream arXiv": {
        **{"preset": "h100-dream-7b", "workload": "arxiv", "qps": "8.5"},
        **{"sustained-tflops": "495", "tokens-per-step": "2.45", "output-scale": "0.23"},
    },
}
"""Options of `sangam simulate` that fit each row to the paper; what all rows share is in `options_of`."""

FIXED = ("512", "1024", "2048", "4096", "16384")
BUDGETS = (*FIXED, AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulated run. `budget` is tau in tokens, or auto."""

    row: str
    dispatch: str
    budget: str
    seed: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End-to-end seconds of its requests, and the hash of all effects."""

    mean_s: float
    p99_s: float
    effects_hash: str


Outcomes = Mapping[Case, Outcome]


def options_of(case: Case) -> dict[str, str]:
    """The run as options of `sangam simulate`."""
    return {
        **{"mode": "colocated", "max-output": "768", "requests": str(case.requests), "seed": str(case.seed)},
        **{"dispatch": case.dispatch, "token-budget": case.budget},
        **ROWS[case.row],
    }


def simulate(case: Case) -> Outcome:
    """Run it."""
    planned = build_run(Settings(options_of(case)))
    metrics = summarise(SimCluster(planned.config, planned.requests).run())
    assert metrics.finished == case.requests, case
    return Outcome(mean_s=metrics.latency.mean, p99_s=metrics.latency.p99, effects_hash=metrics.effects_hash[:8])


def plan(
    *, rows: Iterable[str], dispatches: Sequence[str], budgets: Sequence[str], seeds: int, requests: int
) -> list[Case]:
    """Every combination; seeds change slowest, so that a run that is broken off has whole tables of fewer seeds."""
    return [
        Case(row=row, dispatch=dispatch, budget=budget, seed=seed, requests=requests)
        for seed in range(seeds)
        for row in rows
        for dispatch in dispatches
        for budget in budgets
    ]


class Ledger:
    """Outcomes so far; with a file, also those of earlier calls, which are then not simulated again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.outcomes: dict[Case, Outcome] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.outcomes[Case(**entry["case"])] = Outcome(**entry["outcome"])

    def outcome_of(self, case: Case) -> Outcome:
        """The outcome of that run, simulated now unless it is known."""
        if case not in self.outcomes:
            self.outcomes[case] = outcome = simulate(case)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps({"case": asdict(case), "outcome": asdict(outcome)}) + "\n")
        return self.outcomes[case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the table: means over the seeds, in seconds."""

    row: str
    dispatch: str
    mean_s: Mapping[str, float]
    p99_s: Mapping[str, float]

    def ratio(self, figure: Mapping[str, float]) -> float:
        """Auto's figure to the best of the fixed budgets; nan when one of them is missing."""
        fixed = [value for budget, value in figure.items() if budget != AUTO]
        return figure[AUTO] / min(fixed) if AUTO in figure and fixed else float("nan")


def lines_of(outcomes: Outcomes) -> list[Line]:
    """The table: one line per row and dispatch."""
    lines = []
    for row, dispatch in dict.fromkeys((case.row, case.dispatch) for case in outcomes):
        here = {case: outcome for case, outcome in outcomes.items() if (case.row, case.dispatch) == (row, dispatch)}
        budgets = dict.fromkeys(case.budget for case in here)
        lines.append(
            Line(
                row=row,
                dispatch=dispatch,
                mean_s={b: statistics.fmean(o.mean_s for c, o in here.items() if c.budget == b) for b in budgets},
                p99_s={b: statistics.fmean(o.p99_s for c, o in here.items() if c.budget == b) for b in budgets},
            )
        )
    return lines


def render(outcomes: Outcomes) -> str:
    """The table as text: mean / p99 in seconds for each budget, then auto's ratios to the best fixed ones."""
    lines = lines_of(outcomes)
    budgets = list(dict.fromkeys(case.budget for case in outcomes))
    header = ["row", "dispatch", *budgets, "mean to best", "p99 to best"]
    rows = []
    for line in lines:
        cells = [f"{line.mean_s[b]:.2f} / {line.p99_s[b]:.2f}" if b in line.mean_s else "-" for b in budgets]
        ratios = [f"{line.ratio(figure):.3f}" for figure in (line.mean_s, line.p99_s)]
        rows.append([line.row, line.dispatch, *cells, *ratios])
    return render_table(header, rows)


def plot(outcomes: Outcomes, directory: Path) -> None:
    """`budget.png`: mean and p99 against the fixed budget, and those of auto as a level."""
    from matplotlib.figure import Figure

    lines = lines_of(outcomes)
    figure = Figure(figsize=(11.0, 2.6 * len(lines)), layout="constrained")
    grid = figure.subplots(len(lines), 2, squeeze=False)
    for axes, line in zip(grid, lines, strict=True):
        for one, name, values in ((axes[0], "mean", line.mean_s), (axes[1], "p99", line.p99_s)):
            fixed = [budget for budget in values if budget != AUTO]
            one.plot(fixed, [values[budget] for budget in fixed], marker="o", label="fixed")
            if AUTO in values:
                one.axhline(values[AUTO], color="tab:orange", label=AUTO)
            one.set(title=f"{line.row}, {line.dispatch}: {name}", xlabel="token budget", ylabel="seconds")
            one.legend()
    figure.savefig(directory / "budget.png", dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate what `argv` asks for (the whole table by default) and print it."""
    args = _parser().parse_args(argv)
    if args.plot is not None:
        check_plotting(args.plot)
    cases = plan(
        rows=args.row or ROWS,
        dispatches=args.dispatch or [member.value for member in reversed(Dispatch)],
        budgets=args.budget or BUDGETS,
        seeds=args.seeds,
        requests=args.requests,
    )
    ledger = Ledger(args.ledger)
    with Progress(len(cases), "runs") as progress:
        for done, case in enumerate(cases):
            progress.show(done, f"{case.row}, {case.dispatch}, {case.budget}, seed {case.seed}")
            ledger.outcome_of(case)
    outcomes = {case: ledger.outcomes[case] for case in cases}
    for text in _report(outcomes, args):
        print(text, flush=True)
    if args.plot is not None:
        plot(outcomes, args.plot)
    return 0


def _report(outcomes: Outcomes, args: argparse.Namespace) -> Iterator[str]:
    yield f"End-to-end seconds, mean / p99: means over {args.seeds} seeds of {args.requests} requests each"
    yield render(outcomes)
    yield "  to best: auto's figure to the lowest of the fixed budgets; below 1 auto is better"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m common.bench.budget", description=__doc__)
    parser.add_argument("--requests", type=_positive, default=2000, help="requests of each run (default 2000)")
    parser.add_argument("--seeds", type=_positive, default=3, help="runs of each kind, seeds 0, 1, ... (default 3)")
    parser.add_argument("--row", action="append", choices=tuple(ROWS), help="only this row; may be given again")
    parser.add_argument("--dispatch", action="append", choices=[member.value for member in Dispatch])
    parser.add_argument("--budget", action="append", choices=BUDGETS, help="only this budget; may be given again")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="keep outcomes there; known ones are not run again")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write budget.png there (needs matplotlib)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
