"""A redis-server of a cluster's own: `python -m common.cli.redis_process --port P --ready-file FILE`.

It listens on loopback and writes nothing to disk. SIGTERM ends it; when this process is killed, it ends too.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from common.cli.tethered import tether
from common.errors import ConfigError
from common.rpc.service import write_ready_file

PROGRAM = "redis-server"
HOST = "127.0.0.1"
POLL_INTERVAL_S = 0.02


def redis_installed() -> bool:
    """Whether this machine has a redis-server."""
    return shutil.which(PROGRAM) is not None


def main() -> int:
    """Run the server until it ends; returns its exit code."""
    parser = argparse.ArgumentParser(prog="sangam redis", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port on loopback (default 0: any free one)")
    parser.add_argument("--ready-file", type=Path, help="file that gets address and pid as JSON once it serves")
    args = parser.parse_args()
    if not redis_installed():
        raise ConfigError(f"{PROGRAM} is not installed")
    port = args.port or _free_port()
    words = ["--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no", "--daemonize", "no"]
    server = subprocess.Popen([PROGRAM, *words], preexec_fn=functools.partial(tether, os.getpid()))
    signal.signal(signal.SIGTERM, lambda number, frame: server.terminate())
    while server.poll() is None and not _answers(port):
        time.sleep(POLL_INTERVAL_S)
    if server.poll() is None:
        write_ready_file(args.ready_file, service="redis", address=f"{HOST}:{port}")
    return server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
