"""A run's metrics as text for people and as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from common.sim.metrics import Metrics, Spread

Point = tuple[Mapping[str, str], Metrics]
"""One run: the settings that make it differ from the others, and what came out."""

_SPREADS = (
    ("end to end", "latency"),
    ("prefill queueing", "queueing"),
    ("decode time", "decode"),
    ("first commit", "first_commit"),
    ("decode gap", "decode_gap"),
    ("KV transfer", "kv_transfer"),
    ("KV transfer / request", "kv_transfer_per_request"),
)


def render_metrics(metrics: Metrics) -> str:
    """One run as a table of times and a few lines."""
    rows = [[name, *_cells(getattr(metrics, field))] for name, field in _SPREADS]
    lines = [_table(["seconds", "mean", "p50", "p90", "p99"], rows)]
    lines += [f"  {name:<22}{value}" for name, value in _facts(metrics)]
    return "\n".join(lines)


def render_sweep(points: Sequence[Point]) -> str:
    """Several runs, one a line."""
    names = list(points[0][0])
    header = [*names, "mean", "p50", "p90", "p99", "queue p99", "decode p99", "gap p99", "overflow", "failed", "hash"]
    rows = []
    for settings, metrics in points:
        times_s = (*_cells(metrics.latency), *(_seconds(s.p99) for s in (metrics.queueing, metrics.decode)))
        gap, failed = _seconds(metrics.decode_gap.p99), metrics.requests - metrics.finished
        overflow = f"{metrics.overflow_share:.1%}"
        rows.append([*settings.values(), *times_s, gap, overflow, str(failed), metrics.effects_hash[:8]])
    return _table(header, rows)


def to_json(points: Sequence[Point], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values; an empty sample's figures are null."""
    runs = [{"point": dict(point), "metrics": _plain(asdict(metrics))} for point, metrics in points]
    return {"settings": dict(settings), "runs": runs}


def _facts(metrics: Metrics) -> list[tuple[str, str]]:
    busy = ", ".join(f"{role} {share:.1%}" for role, share in metrics.utilisation.items())
    rates = ", ".join(f"{role} {rate:,.0f}" for role, rate in metrics.query_tokens_per_s.items())
    failures = ", ".join(f"{count} {reason}" for reason, count in metrics.failures.items()) or "none"
    return [
        (
            "requests",
            f"{metrics.finished} of {metrics.requests} finished in {metrics.span_s:.1f} s; failed: {failures}",
        ),
        ("throughput", f"{metrics.requests_per_s:.2f} requests/s, {metrics.output_tokens_per_s:,.0f} output tokens/s"),
        ("utilisation", busy),
        ("query tokens/s/worker", rates),
        ("overflow", f"{metrics.overflow_share:.1%} of {metrics.blocks} blocks"),
        ("repeated attempts", str(metrics.repeated_attempts)),
        ("tokens per forward", f"{metrics.tokens_per_forward:.2f}"),
        ("hash of all effects", f"{metrics.effects_hash} ({metrics.effects} effects, {metrics.core_events} events)"),
    ]


def _cells(values: Spread) -> list[str]:
    return [_seconds(value) for value in (values.mean, values.p50, values.p90, values.p99)]


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Names to the left, figures to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(["", row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
