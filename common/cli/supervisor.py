"""One service process under supervision: started, watched, restarted with back-off, stopped.

A process is tethered to this one (`common.cli.tethered`), lives in a session of its own so that a terminal's Ctrl-C
reaches only the supervisor, and says that it serves by writing a ready file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sangam
from common.backoff import Backoff
from common.errors import SangamError
from common.racing import race
from common.rpc import shared_port

READY_POLL_S = 0.02
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
LAST_LOG_LINES = 12


class ServiceFailed(SangamError):
    """A service did not come up; the text holds its last log lines and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to run one service: `python -m module arguments`, with `port` (0: any free one) kept over restarts.

    `may_end` says that an exit code of 0 is an end in order (a drained worker) and no reason to start it again;
    `shares_port` that the next life may listen while the last one still does (see `common.rpc.shared_port`).
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    may_end: bool
    port: int = 0
    shares_port: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyInfo:
    """What a service wrote when it began to serve: host:port, its process id, and a worker's incarnation (else 0)."""

    address: str
    pid: int
    incarnation: int


def read_ready_file(path: Path) -> ReadyInfo | None:
    """The service's announcement, or None while there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return ReadyInfo(
        address=str(found["address"]), pid=int(found["pid"]), incarnation=int(found.get("incarnation") or 0)
    )


def child_environment() -> dict[str, str]:
    """This environment, with the import roots of this very installation first, wherever it was started from."""
    roots = [str(Path(__file__).resolve().parents[2]), str(Path(next(iter(sangam.__path__))).resolve().parent)]
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*dict.fromkeys(roots), *inherited]), "PYTHONUNBUFFERED": "1"}


class ManagedProcess:
    """Keeps one service running until stopped; `say` gets a line for a person whenever something happens to it."""

    def __init__(self, spec: ProcessSpec, *, run_dir: Path, say: Callable[[str], None]) -> None:
        self.spec = spec
        self.log_path = run_dir / f"{spec.name}.log"
        self.ready: ReadyInfo | None = None
        self.restarts = 0
        self._ready_path = run_dir / f"{spec.name}.ready.json"
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._former: asyncio.subprocess.Process | None = None
        self._succeeded = asyncio.Event()
        self._starting = asyncio.Lock()
        self._stopping = False
        self._renewing = False
        self._port = spec.port
        self._patience_s = 0.0
        self._address = ""

    @property
    def pid(self) -> int | None:
        """Process id of the present life, or None between lives."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    @property
    def address(self) -> str:
        """host:port where the service serves, kept over restarts; only after `start`."""
        assert self._address, f"{self.spec.name} has not started"
        return self._address

    async def start(self, *, timeout_s: float) -> None:
        """Start the process and wait until it serves. Raises `ServiceFailed` when it ends or takes too long.

        Later lives have `timeout_s` too: one that takes longer is killed, and the next follows.
        """
        self._patience_s = timeout_s
        self._process = await self._spawn()
        try:
            async with asyncio.timeout(timeout_s):
                self._serves(await self._await_ready(self._process))
        except TimeoutError:
            raise ServiceFailed(self._failure(f"did not serve within {timeout_s:.0f} s")) from None

    async def supervise(self) -> None:
        """Restart the process whenever it ends unasked; return once it ended for good.

        Lives that end before they serve follow each other with a growing back-off, one that served with the first.
        """
        backoff = Backoff(first_s=FIRST_BACKOFF_S, longest_s=MAX_BACKOFF_S, jitter=False)
        while True:
            process = self._process
            assert process is not None, "start comes before supervise"
            code = await race(process.wait(), self._succession())
            if self._stopping:
                return
            if code is None or self._process is not process:
                continue
            if self._renewing:
                self._renewing = False
                await self._restart()
                continue
            if code == 0 and self.spec.may_end:
                self._say(f"{self.spec.name} has ended by itself (drained); it is not restarted")
                return
            if self.ready is not None:
                backoff.reset()
            pause_s = backoff.take()
            self._say(f"{self.spec.name} ended ({self._why(code)}); restarting it in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            async with self._starting:
                # Unless a next life was just being started anyway.
                if self._process is process:
                    await self._restart()

    async def renew(self, *, grace_s: float) -> None:
        """End this life in order, at most within `grace_s`, and wait until the next one, at the same place, serves.

        Where the two can share the port the next one serves before this one is told, and nobody is refused meanwhile.

        Only while `supervise` runs. Raises ServiceFailed when no next life serves; one that has ended stays ended.
        """
        if self.pid is None:
            return
        if self.spec.shares_port:
            await self._hand_over(grace_s)
            return
        assert self._process is not None, "it has a pid"
        restarts, self._renewing = self.restarts, True
        await self._end(self._process, signal.SIGTERM, grace_s)
        try:
            async with asyncio.timeout(self._patience_s):
                while self.ready is None or self.restarts == restarts:  # noqa: ASYNC110  # another process tells
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            raise ServiceFailed(self._failure(f"did not serve again within {self._patience_s:.0f} s")) from None

    async def stop(self, *, grace_s: float) -> int | None:
        """Ask the process to end (SIGTERM), and insist (SIGKILL) after `grace_s`. Returns its exit code."""
        self._stopping = True
        lives = [life for life in (self._process, self._former) if life is not None]
        codes = await asyncio.gather(*(self._end(life, signal.SIGTERM, grace_s) for life in lives))
        return codes[0] if codes else None

    async def _end(self, process: asyncio.subprocess.Process, asked: signal.Signals, grace_s: float) -> int:
        _signal(process, asked)
        try:
            async with asyncio.timeout(grace_s):
                return await process.wait()
        except TimeoutError:
            self._say(f"{self.spec.name} did not stop within {grace_s:.0f} s; killing it")
            _signal(process, signal.SIGKILL)
            return await process.wait()

    async def _hand_over(self, grace_s: float) -> None:
        """Let the next life serve at the same port, then tell this one so and wait for its end."""
        async with self._starting:
            process, ready = await self._successor()
            self._process, self._former = process, self._process
            self.restarts += 1
            self._serves(ready)
            self._succeeded.set()
        assert self._former is not None, "a life comes before its successor"
        await self._end(self._former, shared_port.SIGNAL, shared_port.MOVE_S + grace_s)
        self._former = None

    async def _successor(self) -> tuple[asyncio.subprocess.Process, ReadyInfo]:
        """The next life, once it serves. Raises ServiceFailed when it does not; it is gone then, this one goes on."""
        process = await self._spawn()
        try:
            async with asyncio.timeout(self._patience_s):
                ready = await self._await_ready(process)
        except BaseException as error:
            _signal(process, signal.SIGKILL)
            await process.wait()
            if isinstance(error, TimeoutError):
                raise ServiceFailed(self._failure(f"did not serve within {self._patience_s:.0f} s")) from None
            raise
        return process, ready

    async def _succession(self) -> None:
        """Return when another life has taken this one's place."""
        await self._succeeded.wait()
        self._succeeded.clear()

    async def _restart(self) -> None:
        if self._stopping:
            return
        self.ready = None
        self._process = process = await self._spawn()
        self.restarts += 1
        # A life that ends before it serves is seen by `supervise` all the same.
        with contextlib.suppress(ServiceFailed):
            try:
                async with asyncio.timeout(self._patience_s):
                    self._serves(await self._await_ready(process))
            except TimeoutError:
                self._say(f"{self.spec.name} did not serve within {self._patience_s:.0f} s; killing it")
                _signal(process, signal.SIGKILL)
            else:
                self._say(f"{self.spec.name} is back (pid {self.pid}, {self.address})")

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._ready_path.unlink(missing_ok=True)
        # A port among the service's own arguments wins.
        arguments = ("--port", str(self._port), "--ready-file", str(self._ready_path), *self.spec.arguments)
        with self.log_path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "common.cli.tethered", str(os.getpid()), self.spec.module, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=child_environment(),
            )

    async def _await_ready(self, process: asyncio.subprocess.Process) -> ReadyInfo:
        while (ready := read_ready_file(self._ready_path)) is None:
            if process.returncode is not None:
                raise ServiceFailed(self._failure(f"ended while starting ({describe_exit(process.returncode)})"))
            await asyncio.sleep(READY_POLL_S)
        return ready

    def _serves(self, ready: ReadyInfo) -> None:
        self.ready = ready
        # A restarted service keeps its place: others hold its address.
        self._address = ready.address
        self._port = int(ready.address.rpartition(":")[2])

    def _why(self, code: int) -> str:
        """The exit code in words, and what the process said last if it chose to end."""
        said = last_lines(self.log_path, 1) if code > 0 else []
        return ": ".join([describe_exit(code), *said])

    def _failure(self, what: str) -> str:
        lines = last_lines(self.log_path)
        shown = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        return f"{self.spec.name} {what}. Its last words:\n{shown}\n  {advice(lines)} Whole log: {self.log_path}"


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def describe_exit(code: int) -> str:
    """Words for an exit code as the subprocess modules give it (negative: a signal)."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def last_lines(path: Path, count: int = LAST_LOG_LINES) -> list[str]:
    """The last lines of a log file, none when there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def advice(lines: Sequence[str]) -> str:
    """What a person can do about a service that ended with these last lines."""
    text = "\n".join(lines)
    hints = (
        ("in use", "Another program has that port: choose one with --grpc-port."),
        ("Failed to bind", "That port cannot be had: choose one with --grpc-port."),
        ("out of memory", "Give it fewer pages with --kv-pages, or start fewer workers."),
        ("is not installed", "The installation is incomplete: run `make install`."),
        ("No module named", "The installation is incomplete: run `make install`."),
        ("CUDA", "Check --device; `--device cpu` always works."),
    )
    return next((hint for sign, hint in hints if sign in text), "If that does not help, try --log-level debug.")


async def stop_all(processes: Sequence[ManagedProcess], *, grace_s: float) -> None:
    """Stop these side by side."""
    async with asyncio.TaskGroup() as group:
        for process in processes:
            group.create_task(process.stop(grace_s=grace_s))
