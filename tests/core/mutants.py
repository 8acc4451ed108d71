"""`make mutants`: break one rule at a time, and show which part of the suite notices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import pytest

from tests.core import scheduler_mutants
from tests.core import test_worker_machine as worker_machine


def worker_killer_of(name: str) -> str | None:
    """How the worker's scenarios and random lives object to that mutant; None: they do not."""
    with pytest.MonkeyPatch.context() as patch:
        worker_machine.install(patch, *worker_machine.MUTANTS[name])
        try:
            worker_machine.run_suite(examples=200)
        except (AssertionError, KeyError, ValueError) as objection:
            return f"{type(objection).__name__}: {objection}"
    return None


def main() -> int:
    """Print a row per mutant; 1 when one survives."""
    parts: list[tuple[str, Iterable[str], Callable[[str], str | None]]] = [
        ("scheduler", scheduler_mutants.MUTANTS, scheduler_mutants.killer_of),
        ("worker", worker_machine.MUTANTS, worker_killer_of),
    ]
    killers = []
    print(f"{'part':10} {'mutant':48} {'fate':9} by")
    for part, mutants, killer_of in parts:
        for name in mutants:
            killers.append(killer_of(name))
            words = " ".join((killers[-1] or "nothing").split())[:90]
            fate = "survives" if killers[-1] is None else "killed"
            print(f"{part:10} {name:48} {fate:9} {words}", flush=True)
    print(f"{len(killers)} mutants, {killers.count(None)} survive")
    return 1 if None in killers else 0


if __name__ == "__main__":
    sys.exit(main())
