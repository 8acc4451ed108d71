"""Types of command-line arguments that several commands share; each raises what argparse shows as one line."""

from __future__ import annotations

import argparse
from pathlib import Path


def folder(text: str) -> Path:
    """A path; an empty one, such as that of a variable which is not set, would be the present folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, not be empty")
    return Path(text)
