"""What every command with `--plot DIR` checks before it computes anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from common.cli.arguments import make_folder
from common.errors import ConfigError


def check_plotting(directory: Path) -> None:
    """Raise ConfigError unless matplotlib is there and `directory` can be written to; makes the directory."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot: matplotlib is not installed; install it with: pip install 'sangam[plots]'")
    make_folder(directory, "--plot")
