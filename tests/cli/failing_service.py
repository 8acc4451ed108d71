"""A service whose second and third life end before they serve: `python -m tests.cli.failing_service FOLDER [flags]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Leave a mark in FOLDER for every life; serve nothing, but say so in the ready file, but for lives 2 and 3."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port")
    parser.add_argument("--ready-file", type=Path)
    given = parser.parse_args()
    (given.folder / f"life-{os.getpid()}").touch()
    if len(list(given.folder.glob("life-*"))) in (2, 3):
        return 1
    draft = given.folder / "draft"
    draft.write_text(json.dumps({"address": "127.0.0.1:9", "pid": os.getpid()}))
    draft.replace(given.ready_file)
    time.sleep(3600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
