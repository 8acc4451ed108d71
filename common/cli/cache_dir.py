"""The folder for what can be made again: run folders and their logs."""

from __future__ import annotations

import os
from pathlib import Path

from common.cli.arguments import make_folder
from common.errors import ConfigError


def cache_dir() -> Path:
    """Folder for things that can be built again: $SANGAM_CACHE_DIR, else sangam under the user's cache folder."""
    if own := os.environ.get("SANGAM_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sangam"


def make_cache_folder(folder: Path) -> None:
    """Make a folder below `cache_dir`, with its parents. Raises ConfigError when it cannot be written."""
    try:
        make_folder(folder, "cache folder")
    except ConfigError as error:
        raise ConfigError(f"{error}; set SANGAM_CACHE_DIR to a folder that can be written") from None
