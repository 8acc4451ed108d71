"""Run a cluster in virtual time: the services' own scheduling, with a cost model where the GPUs would be."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence

from common.cli.arguments import folder
from common.cli.plotting import check_plotting
from common.cli.progress import Progress
from common.errors import ConfigError
from common.sim.cluster import SimCluster, SimResult
from common.sim.metrics import summarise
from common.sim.options import OPTIONS, Run, build_run
from common.sim.plots import plot_run, plot_sweep
from common.sim.report import Point, render_metrics, render_sweep, to_json
from common.sim.settings import Settings


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
    parser.add_argument("--plot", type=folder, metavar="DIR", help="write PNG plots there (needs matplotlib)")


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
            plot_run(result, args.plot, _file_name(point))
    if args.plot is not None:
        plot_sweep(points, args.plot)
    _print(points, settings, as_json=args.json)
    return 0


def _points(sweeps: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the swept options' values."""
    axes: list[list[tuple[str, str]]] = []
    for sweep in sweeps:
        name, _, values = sweep.partition("=")
        if name not in OPTIONS or not values or not all(values.split(",")):
            raise ConfigError(f"--sweep: {sweep!r} is not allowed; allowed: OPTION=A,B,... of {', '.join(OPTIONS)}")
        if any(name == swept for axis in axes for swept, _ in axis):
            raise ConfigError(f"--sweep: {name} is swept twice; allowed: each option once, with all its values")
        axes.append([(name, value) for value in values.split(",")])
    return [dict(pairs) for pairs in itertools.product(*axes)]


def _file_name(point: Mapping[str, str]) -> str:
    """What the plots of a point are called; a value may be a path."""
    name = "-".join(f"{name}-{value}" for name, value in point.items()) or "run"
    return re.sub(r"[^\w.,:=+-]+", "_", name)


def _simulate(planned: Run, point: Mapping[str, str]) -> SimResult:
    label = "".join(f"{name} {value}, " for name, value in point.items())
    with Progress(len(planned.requests), "requests") as progress:
        return SimCluster(planned.config, planned.requests).run(
            lambda virtual_s, ended: progress.show(ended, f"{label}{virtual_s:.0f} simulated seconds")
        )


def _print(points: list[Point], settings: Settings, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(to_json(points, settings.given), indent=2))
        return
    if len(points) == 1:
        _, metrics = points[0]
        print(render_metrics(metrics))
    else:
        print(render_sweep(points))
