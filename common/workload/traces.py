"""Recorded workloads as CSV: who came when, with how long a prompt and output.

Two styles are read, told apart by their header: times and lengths (as published LLM serving traces have them), or
lengths alone (`prompt_len,gen_len[,messages]`). Column names are compared without case, spaces and underscores.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.errors import ConfigError

ARRIVAL_COLUMNS = ("TIMESTAMP", "arrival_time", "arrived_at", "arrival_s", "arrival")
PROMPT_COLUMNS = (
    "prompt_len",
    "ContextTokens",
    "prompt_tokens",
    "num_prefill_tokens",
    "Request tokens",
    "input_length",
)
OUTPUT_COLUMNS = (
    *("gen_len", "GeneratedTokens", "output_tokens", "num_decode_tokens", "Response tokens", "output_length"),
)


FORM = "a CSV file in UTF-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded request; `arrival_s` is None when the trace has no times."""

    arrival_s: float | None
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path, *, option: str) -> list[TraceRow]:
    """Rows of a CSV file in order of arrival. Raises ConfigError naming `option`, file, and column or line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return _read(csv.reader(lines), path, option)
    except (OSError, ValueError, csv.Error) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{option}: cannot read {path}: {cause}; allowed: {FORM}") from None


def _read(lines: Iterator[list[str]], path: Path, option: str) -> list[TraceRow]:
    header = next(lines, [])
    arrival = _find(header, ARRIVAL_COLUMNS)
    prompt = _require(header, PROMPT_COLUMNS, "prompt length", path, option)
    output = _require(header, OUTPUT_COLUMNS, "output length", path, option)
    rows = []
    for number, cells in enumerate(lines, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        try:
            rows.append(
                TraceRow(
                    arrival_s=None if arrival is None else _seconds(cells[arrival]),
                    prompt_tokens=_tokens(cells[prompt]),
                    output_tokens=_tokens(cells[output]),
                )
            )
        except (IndexError, ValueError):
            where = f"{option}: {path}, row {number}"
            raise ConfigError(
                f"{where}: needs a time, and whole numbers of tokens of at least 1, in its columns"
            ) from None
    if not rows:
        raise ConfigError(f"{option}: {path} holds no requests; allowed: {FORM} with at least one row")
    return sorted(rows, key=lambda row: row.arrival_s or 0.0)


def _require(header: Sequence[str], names: Sequence[str], what: str, path: Path, option: str) -> int:
    index = _find(header, names)
    if index is None:
        found = ", ".join(header) or "none"
        raise ConfigError(
            f"{option}: {path} has no column for the {what}; allowed: {', '.join(names)} (found: {found})"
        )
    return index


def _find(header: Sequence[str], names: Sequence[str]) -> int | None:
    wanted = {_plain(name) for name in names}
    return next((index for index, name in enumerate(header) if _plain(name) in wanted), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "").replace("_", "")


def _seconds(cell: str) -> float:
    """Seconds, or a date and time."""
    try:
        time_s = float(cell)
    except ValueError:
        # Published traces give sevenths of a second's digits; datetime reads six.
        whole, point, fraction = cell.strip().partition(".")
        moment = datetime.fromisoformat(f"{whole}{point}{fraction[:6]}" if fraction.isdigit() else cell.strip())
        time_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(time_s):
        raise ValueError
    return time_s


def _tokens(cell: str) -> int:
    tokens = int(cell)
    if tokens < 1:
        raise ValueError
    return tokens
