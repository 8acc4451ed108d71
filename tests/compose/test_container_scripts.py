"""What runs inside a container: `serve`, and the health check that finds its service by the ready file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from common.rpc.healthcheck import address_in, main
from tests.compose.compose_file import COMPOSE_DIR

ROOT = COMPOSE_DIR.parent
SERVE = COMPOSE_DIR / "bin" / "serve"
TIMEOUT_S = 30.0


@contextmanager
def serving(tmp_path: Path, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """`serve kv_store` as a container runs it, on a loopback port; nothing of it is left afterwards."""
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        # Through the symlink the interpreter would not find the packages of a virtual environment.
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos"), *sys.path[1:]]),
        "SANGAM_READY_FILE": str(tmp_path / "ready.json"),
        **settings,
    }
    process = subprocess.Popen(
        [str(SERVE), "kv_store"], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def ready_pid(tmp_path: Path) -> int:
    return int(json.loads((tmp_path / "ready.json").read_text())["pid"])


def test_sigterm_reaches_the_service_which_ends_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as container:
        wait_for((tmp_path / "ready.json").exists)
        container.terminate()
        assert container.wait(TIMEOUT_S) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(ready_pid(tmp_path), 0)


def test_the_death_of_the_service_is_the_death_of_the_container(tmp_path: Path) -> None:
    with serving(tmp_path) as container:
        wait_for((tmp_path / "ready.json").exists)
        os.kill(ready_pid(tmp_path), signal.SIGKILL)
        assert container.wait(TIMEOUT_S) == 128 + signal.SIGKILL


def test_a_users_mistake_is_told_once_and_not_repeated(tmp_path: Path) -> None:
    with serving(tmp_path, SANGAM_PORT="many") as container:
        assert container.stderr is not None
        told = [container.stderr.readline() for _ in range(2)]
        assert told[0] == "sangam kv_store: error: SANGAM_PORT: must be a whole number, not 'many'\n"
        assert told[1].startswith("sangam kv_store: not restarted: ")
        with pytest.raises(subprocess.TimeoutExpired):
            container.wait(0.5)
        container.terminate()
        assert container.wait(TIMEOUT_S) == 2
        # Whatever kept the container up would hold the other end of this pipe.
        assert container.stderr.read() == ""


def test_the_health_check_follows_the_ready_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready_file = tmp_path / "ready.json"
    assert main(["--ready-file", str(ready_file)]) == 1
    assert f"no {ready_file} yet" in capsys.readouterr().out
    with serving(tmp_path) as container:
        wait_for(ready_file.exists)
        assert main(["--ready-file", str(ready_file)]) == 0
        container.terminate()
        container.wait(TIMEOUT_S)
    # The file outlives the service: a stale one is no health.
    assert main(["--ready-file", str(ready_file)]) == 1


def test_the_health_check_reads_the_ready_file_of_its_environment(tmp_path: Path) -> None:
    with serving(tmp_path):
        wait_for((tmp_path / "ready.json").exists)
        command = [sys.executable, "-m", "common.rpc.healthcheck"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}"}
        environment["SANGAM_READY_FILE"] = str(tmp_path / "ready.json")
        assert subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S).returncode == 0


@pytest.mark.parametrize(
    ("bound", "reached"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("0.0.0.0:50051", "127.0.0.1:50051"),
        ("[::]:50051", "[::1]:50051"),
        ("10.1.2.3:7", "10.1.2.3:7"),
    ],
)
def test_a_service_that_listens_everywhere_is_asked_on_loopback(tmp_path: Path, bound: str, reached: str) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text(json.dumps({"service": "gateway", "address": bound, "pid": 1}))
    assert address_in(ready_file) == reached


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": 7}'])
def test_a_broken_ready_file_is_said_to_be_one(tmp_path: Path, text: str) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text(text)
    with pytest.raises(ValueError):
        address_in(ready_file)


def test_the_health_check_asks_for_something_to_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SANGAM_READY_FILE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "an address or --ready-file is required" in capsys.readouterr().err


def test_the_scripts_can_be_run() -> None:
    assert shutil.which(str(SERVE)) and shutil.which(str(COMPOSE_DIR / "bin" / "sangam"))
