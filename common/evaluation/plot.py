"""`quality.png`: exact match against forwards per answer, a panel per block length, a curve per cache mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.core.params import CacheMode
from common.evaluation.evaluation import SettingResult
from common.evaluation.setting import strategy_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 100
_PANEL_WIDTH_INCHES = 4.5
_LOOKS = {
    CacheMode.NONE: ("tab:gray", "o"),
    CacheMode.PREFIX: ("tab:blue", "s"),
    CacheMode.DUAL: ("tab:orange", "^"),
}
"""Colour and marker."""


def plot_quality(results: Sequence[SettingResult], directory: Path) -> Path:
    """Write the plot into `directory`, which exists, and return its path. Needs matplotlib."""
    from matplotlib.figure import Figure

    lengths = list(dict.fromkeys(result.setting.block_length_tokens for result in results))
    width = max(7.0, _PANEL_WIDTH_INCHES * len(lengths))
    figure = Figure(figsize=(width, 4.5), layout="constrained")
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for length, axes in zip(lengths, panels, strict=True):
        axes.set_title(f"block length {length}")
        _draw(axes, [result for result in results if result.setting.block_length_tokens == length])
    panels[0].set_ylabel(f"exact match, % of {results[0].overall.questions} questions")
    panels[-1].legend(title="cache", loc="lower right")
    path = directory / "quality.png"
    figure.savefig(path, dpi=_DPI)
    return path


def _draw(axes: Axes, results: Sequence[SettingResult]) -> None:
    """The curves of one block length, points in the order of their forwards; strategies are named once, at `none`."""
    for mode, (colour, marker) in _LOOKS.items():
        points = sorted(
            (_forwards(result), 100 * result.overall.exact_match, strategy_label(result.setting.strategy))
            for result in results
            if result.setting.cache_mode is mode
        )
        if points:
            xs, ys, _ = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, marker=marker, label=mode.value, alpha=0.8)
        for x, y, label in points if mode is CacheMode.NONE else ():
            axes.annotate(label, (x, y), (3, 5), textcoords="offset points", fontsize=7, rotation=30)
    axes.set_xlabel("forwards per answer (prefill and decode)")
    # Logarithmic, or all thresholds stand on one spot, far from one token per step.
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.2, y=0.2)
    axes.grid(alpha=0.3)


def _forwards(result: SettingResult) -> float:
    return result.overall.forwards / result.overall.questions
