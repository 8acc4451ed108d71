"""The end of a process that has a thread nobody can end."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def leave_process(code: int) -> NoReturn:
    """End the process now with that exit code, after the last words are out.

    Python's own end would wait for, or pull the interpreter from under, a thread that is inside a library's code.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
