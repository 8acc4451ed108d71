"""A redis-server of one test: its own process on a free loopback port, with nothing on disk."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

START_LIMIT_S = 20
HOW_TO_GET_IT = "redis-server is not installed and the registry's tests need it: apt-get install redis-server"


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """Not started yet. May be killed and started again, empty, on the same port; `stop` ends it in any state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """What `--registry` takes."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Return once it answers."""
        program = shutil.which("redis-server")
        assert program is not None, HOW_TO_GET_IT
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "no", "--logfile", str(self._folder / "redis.log")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        give_up_s = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < give_up_s, f"redis-server does not answer on port {self.port}"
            time.sleep(0.01)

    def kill(self) -> None:
        """kill -9: what it held is gone."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def command(self, *words: str) -> str:
        """Run one Redis command on a connection of its own; what redis-cli prints for it."""
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=START_LIMIT_S,
        )
        return done.stdout.strip()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
