"""The model that is served when none is named: a small random checkpoint, built once into a cache folder."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from common.errors import ConfigError

# Part of the folder's name: raise it when the builder's output changes.
_BUILD = 1


def cache_dir() -> Path:
    """Folder for things that can be built again: $SANGAM_CACHE_DIR, else sangam under the user's cache folder."""
    if own := os.environ.get("SANGAM_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sangam"


def make_cache_folder(folder: Path) -> None:
    """Make a folder below `cache_dir`, with its parents. Raises ConfigError when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        hint = "set SANGAM_CACHE_DIR to a folder that can be written"
        raise ConfigError(f"cache folder {folder}: {error.strerror}; {hint}") from None


def default_model_dir() -> Path:
    """The default checkpoint's folder; built when absent (about a second, a few megabytes).

    Safe to call from several processes at once: the folder appears complete or not at all. Raises ConfigError when
    the cache folder cannot be written.
    """
    target = cache_dir() / f"random-llada-{_BUILD}"
    if target.exists():
        return target
    # Heavy and rarely needed: not imported at start.
    from common.random_checkpoint import build_random_checkpoint

    make_cache_folder(target.parent)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build_random_checkpoint(building, family="llada")
        building.chmod(0o755)
        building.rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target
