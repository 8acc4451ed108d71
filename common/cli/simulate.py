"""Run a cluster in virtual time: the services' own scheduling, with a cost model where the GPUs would be."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.errors import ConfigError
from common.sim.cluster import SimCluster, SimResult
from common.sim.metrics import summarise
from common.sim.options import OPTIONS, Run, build_run
from common.sim.plots import check_plotting, plot_run, plot_sweep
from common.sim.report import Point, render_metrics, render_sweep, to_json
from common.sim.settings import Settings

PROGRESS_AFTER_S = 2.0
PROGRESS_EVERY_S = 1.0
PROGRESS_LINE_EVERY_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam simulate`; their values are read by `common.sim.options`."""
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=text.replace("%", "%%"))
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="OPTION=A,B,...",
        help="run once for each value of an option; given twice, for each pair",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write PNG plots there (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0. Raises ConfigError for a bad option."""
    settings = Settings({name: getattr(args, name.replace("-", "_")) for name in OPTIONS})
    if args.plot is not None:
        check_plotting(args.plot)
    # All points are checked before the first one runs.
    runs = [(point, build_run(settings.replaced(point))) for point in _points(args.sweep)]
    for note in dict.fromkeys(note for _, run in runs for note in run.notes):
        print(f"note: {note}", file=sys.stderr)
    points: list[Point] = []
    for point, planned in runs:
        result = _simulate(planned, point)
        metrics = summarise(result)
        points.append((point, metrics))
        if args.plot is not None:
            plot_run(result, args.plot, "-".join(f"{name}-{value}" for name, value in point.items()) or "run")
    if args.plot is not None:
        plot_sweep(points, args.plot)
    _print(points, settings, as_json=args.json)
    return 0


def _points(sweeps: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the swept options' values."""
    axes = []
    for sweep in sweeps:
        name, _, values = sweep.partition("=")
        if name not in OPTIONS or not values or not all(values.split(",")):
            raise ConfigError(f"--sweep: {sweep!r} is not allowed; allowed: OPTION=A,B,... of {', '.join(OPTIONS)}")
        axes.append([(name, value) for value in values.split(",")])
    return [dict(pairs) for pairs in itertools.product(*axes)]


def _simulate(planned: Run, point: Mapping[str, str]) -> SimResult:
    label = ", ".join(f"{name} {value}" for name, value in point.items())
    progress = _Progress(f"{label}: " if label else "", len(planned.requests))
    try:
        return SimCluster(planned.config, planned.requests).run(progress.show)
    finally:
        progress.close()


class _Progress:
    """Says on stderr how far a long run is: one line, rewritten, on a terminal; a line now and then elsewhere."""

    def __init__(self, label: str, requests: int) -> None:
        self._label, self._requests = label, requests
        self._live = sys.stderr.isatty()
        self._next_s = time.monotonic() + PROGRESS_AFTER_S
        self._open_line = False

    def show(self, virtual_s: float, ended: int) -> None:
        """Say so, unless that was said a moment ago."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (PROGRESS_EVERY_S if self._live else PROGRESS_LINE_EVERY_S)
        text = f"{self._label}{ended} of {self._requests} requests, {virtual_s:.0f} simulated seconds"
        # To the end of the line: a shorter text must not leave the tail of a longer one.
        print(f"\r{text}\x1b[K" if self._live else text, end="" if self._live else "\n", file=sys.stderr, flush=True)
        self._open_line = self._live

    def close(self) -> None:
        """End the line, if one is open."""
        if self._open_line:
            print(file=sys.stderr)


def _print(points: list[Point], settings: Settings, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(to_json(points, settings.given), indent=2))
        return
    if len(points) == 1:
        _, metrics = points[0]
        print(render_metrics(metrics))
    else:
        print(render_sweep(points))
