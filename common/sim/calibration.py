"""Fits a `LinearCost` to measured step times of a live engine, by least squares without negative prices.

File: JSON, either a list or {"steps": [...]}, of {"prefill_tokens": int, "decode_tokens": int, "seconds": float}.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.sim.cost_model import LinearCost

Matrix = list[list[float]]

_FORM = 'a JSON file with a list of steps, or an object with "steps", or stories of workers'
_MAX_TOKENS = 1_000_000_000
_MAX_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One forward of the engine: query tokens by kind, and how long it took."""

    prefill_tokens: int
    decode_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted cost, and the root mean square of its error relative to the mean step time."""

    cost: LinearCost
    relative_error: float


def read_steps(path: Path, *, option: str) -> list[MeasuredStep]:
    """The measurements of a file. Raises ConfigError naming `option`, the file and the entry."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}; allowed: {_FORM}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option}: {path} is not JSON: {error}; allowed: {_FORM}") from None
    entries = content.get("steps") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise ConfigError(f"{option}: {path} holds no list of steps; allowed: {_FORM}")
    return [_step(entry, f"{option}: {path}, step {index}") for index, entry in enumerate(entries)]


def fit(steps: Sequence[MeasuredStep], *, option: str) -> Calibration:
    """Least squares over (1, prefill tokens, decode tokens), no price below 0. Raises ConfigError naming `option`."""
    rows = [[1.0, float(step.prefill_tokens), float(step.decode_tokens)] for step in steps]
    times_s = [step.seconds for step in steps]
    best: tuple[float, list[float]] | None = None
    for kept in _subsets(3):
        prices = _solve([[row[index] for index in kept] for row in rows], times_s)
        if prices is None or min(prices) < 0:
            continue
        full = [0.0, 0.0, 0.0]
        for index, price in zip(kept, prices, strict=True):
            full[index] = price
        error = math.fsum((_dot(full, row) - time_s) ** 2 for row, time_s in zip(rows, times_s, strict=True))
        if best is None or error < best[0]:
            best = error, full
    if best is None or not any(best[1]):
        raise ConfigError(f"{option}: these step times fit no model; steps of different sizes and above 0 s are needed")
    error, (launch_s, prefill_token_s, decode_token_s) = best
    mean_s = math.fsum(times_s) / len(times_s)
    return Calibration(
        cost=LinearCost(launch_s=launch_s, prefill_token_s=prefill_token_s, decode_token_s=decode_token_s),
        relative_error=math.sqrt(error / len(times_s)) / mean_s,
    )


def _step(entry: Any, where: str) -> MeasuredStep:
    try:
        step = MeasuredStep(
            prefill_tokens=int(entry["prefill_tokens"]),
            decode_tokens=int(entry["decode_tokens"]),
            seconds=float(entry["seconds"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"{where}: needs numbers prefill_tokens, decode_tokens, seconds") from None
    tokens = (step.prefill_tokens, step.decode_tokens)
    if not 0 <= min(tokens) <= max(tokens) <= _MAX_TOKENS or not 0 < step.seconds <= _MAX_S:
        raise ConfigError(f"{where}: tokens must be 0 to {_MAX_TOKENS}, seconds above 0 and at most {_MAX_S}")
    return step


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _subsets(columns: int) -> list[tuple[int, ...]]:
    sizes = range(columns, 0, -1)
    return [kept for size in sizes for kept in itertools.combinations(range(columns), size)]


def _solve(rows: Matrix, targets: Sequence[float]) -> list[float] | None:
    """Least squares by the normal equations; None when they are singular."""
    if not rows:
        return None
    columns = range(len(rows[0]))
    scale = [max(abs(row[c]) for row in rows) for c in columns]
    if min(scale) == 0.0:
        return None
    scaled = [[row[c] / scale[c] for c in columns] for row in rows]
    system = [
        [math.fsum(row[a] * row[b] for row in scaled) for b in columns]
        + [math.fsum(row[a] * t for row, t in zip(scaled, targets, strict=True))]
        for a in columns
    ]
    solution = _eliminate(system)
    return None if solution is None else [x / s for x, s in zip(solution, scale, strict=True)]


def _eliminate(system: Matrix) -> list[float] | None:
    """Gauss-Jordan with pivoting on an augmented matrix; None when singular."""
    size = len(system)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(system[row][column]))
        if abs(system[pivot][column]) < 1e-12 * len(system):
            return None
        system[column], system[pivot] = system[pivot], system[column]
        for row in range(size):
            if row != column:
                factor = system[row][column] / system[column][column]
                system[row] = [a - factor * b for a, b in zip(system[row], system[column], strict=True)]
    return [system[row][size] / system[row][row] for row in range(size)]
