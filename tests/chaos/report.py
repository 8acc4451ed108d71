"""The table of a storm."""

from __future__ import annotations

from common.bench.percentile import percentile
from common.cli.table import render_table
from tests.chaos.faults import FaultKind
from tests.chaos.storm import StormResult

RECOVERY_LIMITS_S = {FaultKind.WORKER: 2.0, FaultKind.SCHEDULER: 5.0}
"""What is promised for the 99th percentile, where anything is."""


def render(result: StormResult) -> str:
    """Faults by kind with the waits they led to, then everything that should be right or 0."""
    header = ("fault", "times", "requests touched", "p50 s", "p99 s", "max s", "promised s")
    kinds = [kind for kind in FaultKind if any(fault.kind is kind for fault in result.faults)]
    facts = [
        ("requests that finished", f"{result.finished} of {result.requests} ({result.elapsed_s:.0f} s)"),
        ("tokens", str(result.tokens)),
        ("blocks tried again", str(result.retried_blocks)),
        ("calls made again by clients", str(result.reconnects)),
        ("processes restarted", str(result.restarts)),
        ("tokens that differed when repeated", str(result.leaks.divergences)),
        ("leaked pages, leases, requests", str(result.leaks)),
        ("events replayed to equal effects", str(result.replayed_events)),
        ("problems", str(len(result.problems))),
    ]
    return f"{render_table(header, [_row(result, kind) for kind in kinds])}\n\n{render_table(('what', 'seen'), facts)}"


def late(result: StormResult) -> list[str]:
    """A line for each kind of fault whose recovery took longer than promised."""
    found = {kind: percentile(result.recovery_s[kind], 0.99) for kind in RECOVERY_LIMITS_S}
    return [
        f"recovery after a {kind.value}: p99 {found[kind]:.2f} s, promised {limit_s:g} s"
        for kind, limit_s in RECOVERY_LIMITS_S.items()
        if found[kind] > limit_s
    ]


def _row(result: StormResult, kind: FaultKind) -> tuple[str, ...]:
    waits = result.recovery_s[kind]
    figures = [percentile(waits, share) for share in (0.5, 0.99, 1.0)]
    return (
        kind.value,
        str(sum(fault.kind is kind for fault in result.faults)),
        str(len(waits)),
        *(f"{figure:.2f}" if waits else "-" for figure in figures),
        f"{RECOVERY_LIMITS_S[kind]:g}" if kind in RECOVERY_LIMITS_S else "-",
    )
