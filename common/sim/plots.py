"""PNG plots of runs: latency against load, cumulative distributions, what each worker did when. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.sim.cluster import SimResult
from common.sim.records import FINISHED
from common.sim.report import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIMELINE_S = 5.0
"""Length of the worker timeline, from the middle of the run: more cannot be told apart."""

_DPI = 120
_SEGMENT_COLOURS = {"decode": "tab:blue", "prefill": "tab:orange", "both": "tab:green"}


def plot_run(result: SimResult, directory: Path, name: str) -> None:
    """`cdf-NAME.png` and `timeline-NAME.png` of one run."""
    _save(directory / f"cdf-{name}.png", lambda figure: _draw_cdfs(figure, result))
    _save(directory / f"timeline-{name}.png", lambda figure: _draw_timeline(figure, result))


def plot_sweep(points: Sequence[Point], directory: Path) -> None:
    """`latency.png`: mean, median and tail against the swept load (or whatever was swept)."""
    _save(directory / "latency.png", lambda figure: _draw_latency(figure, points))


def _save(path: Path, draw: Callable[[Figure], None]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    draw(figure)
    figure.savefig(path, dpi=_DPI)


def _draw_latency(figure: Figure, points: Sequence[Point]) -> None:
    axes = figure.add_subplot()
    labels = [", ".join(point.values()) or "run" for point, _ in points]
    numeric = all(len(point) == 1 and _is_number(next(iter(point.values()))) for point, _ in points)
    places: list[float] = [float(label) for label in labels] if numeric else [float(n) for n in range(len(labels))]
    for name in ("mean", "p50", "p90", "p99"):
        axes.plot(places, [getattr(metrics.latency, name) for _, metrics in points], marker="o", label=name)
    if not numeric:
        axes.set_xticks(places, labels)
    axes.set_xlabel(", ".join(points[0][0]) or "run")
    axes.set_ylabel("end to end, seconds")
    axes.set_ylim(bottom=0.0)
    axes.legend()


def _draw_cdfs(figure: Figure, result: SimResult) -> None:
    records = [record for record in result.recorder.requests.values() if record.outcome == FINISHED]
    panels = {
        "end to end": [record.end_s - record.shape.arrival_s for record in records if record.end_s is not None],
        "prefill queueing": [record.queue_s for record in records],
        "decode time": [record.decode_s for record in records],
        "decode gap": list(result.recorder.decode_gaps_s),
    }
    for index, (title, values) in enumerate(panels.items()):
        axes = figure.add_subplot(2, 2, index + 1)
        if values:
            axes.ecdf(values)
        axes.set_title(title)
        axes.set_xlabel("seconds")
        axes.set_xlim(left=0.0)


def _draw_timeline(figure: Figure, result: SimResult) -> None:
    axes = figure.add_subplot()
    workers = sorted(result.recorder.forwards)
    start_s = max(0.0, result.span_s / 2 - TIMELINE_S / 2)
    for row, worker_id in enumerate(workers):
        segments: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _SEGMENT_COLOURS}
        for forward in result.recorder.forwards[worker_id]:
            if start_s <= forward.start_s < start_s + TIMELINE_S:
                kind = "decode" if not forward.prefill_tokens else "both" if forward.decode_tokens else "prefill"
                segments[kind].append((forward.start_s, forward.duration_s))
        for kind, spans in segments.items():
            axes.broken_barh(spans, (row - 0.4, 0.8), color=_SEGMENT_COLOURS[kind], linewidth=0.0)
    _label_timeline(figure, axes, workers)


def _label_timeline(figure: Figure, axes: Axes, workers: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    axes.set_yticks(range(len(workers)), workers)
    axes.set_xlabel("seconds")
    handles = [Patch(color=colour, label=kind) for kind, colour in _SEGMENT_COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
