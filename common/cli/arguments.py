"""What several commands ask of their arguments; a type raises what argparse shows as one line."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from common.errors import ConfigError


def folder(text: str) -> Path:
    """A path; an empty one, such as that of a variable which is not set, would be the present folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, not be empty")
    return Path(text)


def make_folder(path: Path, option: str) -> None:
    """Make the folder that `option` names when it is absent. Raises ConfigError unless it can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"{option}: {path} cannot be made or written to: {error.strerror}; allowed: a folder"
        ) from None
