"""A service some of whose lives never serve: `python -m tests.cli.ill_service FOLDER [--ends 2,3] [--hangs 4]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Leave a mark in FOLDER for every life; serve nothing, but say so in the ready file.

    The lives of `--ends` end before that, with exit code 1; those of `--hangs` never say it. Lives count from 1.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ends", type=_lives, default=())
    parser.add_argument("--hangs", type=_lives, default=())
    parser.add_argument("--port")
    parser.add_argument("--ready-file", type=Path)
    given = parser.parse_args()
    (given.folder / f"life-{os.getpid()}").touch()
    life = len(list(given.folder.glob("life-*")))
    if life in given.ends:
        return 1
    if life not in given.hangs:
        draft = given.folder / "draft"
        draft.write_text(json.dumps({"address": "127.0.0.1:9", "pid": os.getpid()}))
        draft.replace(given.ready_file)
    time.sleep(3600)
    return 0


def _lives(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
