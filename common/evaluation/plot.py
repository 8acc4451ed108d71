"""`quality.png`: exact match against forwards per answer, a curve for each cache mode and block length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.evaluation.evaluation import SettingResult
from common.evaluation.setting import strategy_label

_DPI = 110
_MARKERS = "os^Dv*"


def plot_quality(results: Sequence[SettingResult], directory: Path) -> Path:
    """Write the plot into `directory`, which exists, and return its path. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for index, (label, curve) in enumerate(_curves(results).items()):
        forwards = [result.overall.prefills_per_answer + result.overall.decodes_per_answer for result in curve]
        exact = [100 * result.overall.exact_match for result in curve]
        axes.plot(forwards, exact, marker=_MARKERS[index % len(_MARKERS)], label=label, alpha=0.8)
        for result, x, y in zip(curve, forwards, exact, strict=True):
            axes.annotate(
                strategy_label(result.setting.strategy), (x, y), (4, 4), textcoords="offset points", fontsize=7
            )
    axes.set_xlabel("forwards per answer (prefill and decode)")
    axes.set_ylabel(f"exact match, % of {results[0].overall.questions} questions")
    axes.set_xlim(left=0.0)
    axes.grid(alpha=0.3)
    axes.legend()
    path = directory / "quality.png"
    figure.savefig(path, dpi=_DPI)
    return path


def _curves(results: Sequence[SettingResult]) -> dict[str, list[SettingResult]]:
    """Results by cache mode and block length, each curve in the order of its forwards."""
    curves: dict[str, list[SettingResult]] = {}
    for result in sorted(results, key=lambda result: result.overall.forwards):
        setting = result.setting
        curves.setdefault(f"{setting.cache_mode.value}, block {setting.block_length_tokens}", []).append(result)
    return curves
