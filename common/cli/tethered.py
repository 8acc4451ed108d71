"""Runs a module as a program that cannot outlive its parent: `python -m common.cli.tethered PARENT_PID MODULE [ARGS]`.

A supervisor that is killed outright (kill -9) cannot stop its services; so each of them arranges its own end. Linux
delivers SIGKILL when the parent dies (prctl PR_SET_PDEATHSIG); elsewhere a thread watches for a changed parent.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_INTERVAL_S = 0.5


def tether(parent_pid: int) -> None:
    """End this process with SIGKILL when `parent_pid` ends. Exits at once when that has happened already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(parent_pid,), name="tether", daemon=True).start()
    if os.getppid() != parent_pid:
        # The parent ended before the tether was in place.
        sys.exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> None:
    """Tether to `argv[0]`, then run module `argv[1]` with the rest as its arguments."""
    parent_pid, module, *arguments = argv
    tether(int(parent_pid))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
