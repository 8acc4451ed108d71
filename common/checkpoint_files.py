"""Reading and writing the small text files of a checkpoint's folder; every complaint names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import CheckpointError


def read_text(path: Path) -> str:
    """The file's text. Raises `CheckpointError` when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The file's JSON object. Raises `CheckpointError` when it holds anything else."""
    try:
        document = json.loads(read_text(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: holds {type(document).__name__} where an object is expected")
    return document


def write_object(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object, readable for people too; `path`'s folder exists."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
