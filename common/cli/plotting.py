"""What every command with `--plot DIR` checks before it computes anything."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from common.errors import ConfigError


def check_plotting(directory: Path) -> None:
    """Raise ConfigError unless matplotlib is there and `directory` can be written to; makes the directory."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot: matplotlib is not installed; install it with: pip install 'sangam[plots]'")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--plot: cannot make {directory}: {error.strerror}; allowed: a directory") from None
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(f"--plot: cannot write to {directory}: {error.strerror}; allowed: a directory") from None
