"""What a proof says while it runs, and at its end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_STARTED_S = time.monotonic()


def say(line: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"{time.monotonic() - _STARTED_S:7.1f} s  {line}", file=sys.stderr, flush=True)


def conclude(broken: Sequence[str], folder: Path, *, again: str) -> int:
    """Name every broken promise and leave `folder` for a look at it, or remove it; the exit code."""
    for line in broken:
        print(f"BROKEN: {line}")
    if broken:
        print(f"logs and stories: {folder / 'run'}; once more: {again}")
        return 1
    shutil.rmtree(folder)
    print("every promise was kept")
    return 0
