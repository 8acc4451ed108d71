"""Reading and writing the small text files of a checkpoint's folder; every complaint names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import CheckpointError


def read_text(path: Path, *, if_missing: str = "") -> str:
    """The file's text. Raises `CheckpointError` when it cannot be read or is not UTF-8.

    `if_missing` is advice for whoever named a folder without this file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file" + (f"; {if_missing}" if if_missing else "")) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text: {error}") from None


def read_object(path: Path, *, if_missing: str = "") -> dict[str, Any]:
    """The file's JSON object. Raises `CheckpointError` when it holds anything else; see `read_text`."""
    try:
        document = json.loads(read_text(path, if_missing=if_missing))
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: holds {type(document).__name__} where an object is expected")
    return document


def write_object(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object, readable for people too; `path`'s folder exists."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
