"""`sangam up` as a user runs it: a process of its own, with status, generate and drain beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.cli.main import main
from common.cli.supervisor import child_environment
from tests.integration.cluster_help import processes_of, random_model

START_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "tiny")


class Up:
    """A running `sangam up`."""

    def __init__(self, process: subprocess.Popen[str], cache: Path, run_dir: Path | None) -> None:
        self.process = process
        self.run_dir = run_dir or cache / "run" / str(process.pid)
        self._stderr = cache / "stderr"

    def await_banner(self) -> str:
        """Everything printed until the cluster is ready."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                return "".join(lines)
        raise AssertionError(f"sangam up ended early:\n{''.join(lines)}{self.end_words()}")

    def words(self) -> str:
        """What it has written on stderr so far."""
        return self._stderr.read_text()

    def end_words(self) -> str:
        """What it wrote on stderr, once it has ended."""
        self.process.communicate(timeout=30)
        return self.words()

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; returns exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        words = self.end_words()
        return self.process.returncode, words


@contextmanager
def sangam_up(cache: Path, *flags: str, run_dir: Path | None = None) -> Iterator[Up]:
    with (cache / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "common.cli", "up", "--grpc-port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**child_environment(), "SANGAM_CACHE_DIR": str(cache)},
        )
    try:
        yield Up(process, cache, run_dir)
    finally:
        process.kill()
        process.communicate()


def until(holds: Callable[[], Any], *, timeout_s: float = 30.0) -> None:
    ends_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends_s, "it never came true"
        time.sleep(0.05)


def sangam_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(words) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_up_serves_until_interrupted(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANGAM_CACHE_DIR", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    flags = ("--model", str(model_dir), "--decode-workers", "2", "--run-dir", str(elsewhere))
    with sangam_up(tmp_path, *flags, run_dir=elsewhere) as up:
        banner = up.await_banner()
        assert "tiny is served in hybrid mode" in banner
        gateway = next(line.split()[1] for line in banner.splitlines() if line.split()[:1] == ["gateway"])
        # The running cluster is found without naming it, wherever its folder is.
        status = sangam_json(capsys, "status", "--json")
        assert [worker["worker_id"] for worker in status["workers"]] == ["decode-0", "decode-1", "prefill-0"]
        assert [worker["role"] for worker in status["workers"]] == ["decode", "decode", "prefill"]
        assert all(worker["pages_free"] == worker["pages_total"] > 0 for worker in status["workers"])

        wanted = ("--prompt", "Hello", "--max-tokens", "20", "--json")
        served = sangam_json(capsys, "generate", "--address", gateway, *wanted)
        local = sangam_json(capsys, "generate", "--local", "--model", str(model_dir), *wanted)
        same = ("token_ids", "text", "finish_reason", "prefill_forwards", "decode_forwards", "attempts", "seed")
        assert {name: served[name] for name in same} == {name: local[name] for name in same}

        assert_refusals(gateway, capsys)

        assert main(["drain", "decode-1"]) == 0
        until(lambda: "decode-1 has ended by itself (drained); it is not restarted" in up.words())
        assert len(sangam_json_quietly(capsys)["workers"]) == 2
        assert main(["drain", "decode-7"]) == 1
        assert "registered: decode-0, prefill-0" in capsys.readouterr().err

        code, words = up.interrupt()
        assert code == 0
        assert "Traceback" not in words and "Error" not in words
        assert processes_of(up.run_dir) == []
    assert main(["status"]) == 1
    assert "no cluster of yours is running" in capsys.readouterr().err


def sangam_json_quietly(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    return sangam_json(capsys, "status", "--json")


def assert_refusals(gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input: exit code 2, one line that names the flag, before any compute."""
    cases = {
        "--prompt": ("--prompt", "", "--max-tokens", "8"),
        "--max-tokens": ("--prompt", "x", "--max-tokens", "0"),
        "--token-ids": ("--token-ids", "1,99999", "--max-tokens", "8"),
        "--temperature": ("--prompt", "x", "--max-tokens", "8", "--temperature", "nan"),
        "--threshold": ("--prompt", "x", "--max-tokens", "8", "--threshold", "1.5"),
        "--quota": ("--prompt", "x", "--max-tokens", "8", "--quota", "0"),
    }
    for flag, words in cases.items():
        assert main(["generate", "--address", gateway, *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"sangam generate: error: {flag}:"), error
        assert error.count("\n") == 1
    assert main(["generate", "--address", gateway, "--prompt", "x", "--max-tokens", "1000000"]) == 2
    assert "--max-tokens" in capsys.readouterr().err


def test_killed_up_leaves_no_process(tmp_path: Path, model_dir: Path) -> None:
    with sangam_up(tmp_path, "--model", str(model_dir), "--mode", "colocated") as up:
        up.await_banner()
        assert len(processes_of(up.run_dir)) == 4
        os.kill(up.process.pid, signal.SIGKILL)
        until(lambda: processes_of(up.run_dir) == [])


def test_second_interrupt_ends_at_once_and_leaves_no_process(tmp_path: Path, model_dir: Path) -> None:
    with sangam_up(tmp_path, "--model", str(model_dir), "--mode", "colocated") as up:
        up.await_banner()
        # Processes that cannot even take the polite signal.
        for pid in processes_of(up.run_dir):
            os.kill(pid, signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in up.words())
        code, words = up.interrupt()
        assert code == 0
        assert "Traceback" not in words and "killing it" not in words
        until(lambda: processes_of(up.run_dir) == [])


def test_interrupted_while_starting_leaves_no_process(tmp_path: Path, model_dir: Path) -> None:
    with sangam_up(tmp_path, "--model", str(model_dir)) as up:
        until(lambda: processes_of(up.run_dir))
        code, words = up.interrupt()
        assert code == 0
        assert "Traceback" not in words
        assert processes_of(up.run_dir) == []


def test_service_that_cannot_start_is_shown_with_its_last_words(tmp_path: Path, model_dir: Path) -> None:
    with sangam_up(tmp_path, "--model", str(model_dir), "--mode", "colocated", "--device", "cuda:999") as up:
        words = up.end_words()
        assert up.process.returncode == 1
        assert "decode-0 ended while starting (exit code 2)" in words
        assert "sangam decode_worker: error:" in words and "cuda:999" in words
        assert "Traceback" not in words
        assert processes_of(up.run_dir) == []


def test_port_in_use_is_refused_before_anything_starts(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["up", "--model", str(model_dir), "--grpc-port", port, "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert f"--grpc-port {port}: cannot listen there" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--mode", "colocated", "--prefill-workers", "1"), "--prefill-workers"),
        (("--mode", "disaggregated", "--prefill-workers", "0"), "--prefill-workers"),
        (("--decode-workers", "0"), "--decode-workers"),
        (("--token-budget", "0"), "--token-budget"),
        (("--overload-threshold", "-1"), "--overload-threshold"),
        (("--kv-pages", "-1"), "--kv-pages"),
        (("--grpc-port", "70000"), "--grpc-port"),
        (("--device", "gpu"), "--device"),
        (("--device", "cpu,"), "--device"),
    ],
)
def test_bad_flag_is_named(
    flags: tuple[str, ...], named: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["up", "--grpc-port", "0", "--model", str(model_dir), "--run-dir", str(tmp_path / "run"), *flags]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sangam up: error: {named}: must be")
    assert error.count("\n") == 1


@pytest.mark.parametrize("word", ["nan", "-inf", "1e400", "", "x"])
@pytest.mark.parametrize("flag", ["--schedulers", "--prefill-workers", "--kv-pages", "--grpc-port", "--drain-s"])
def test_what_is_no_number_is_refused_with_what_is_allowed(
    flag: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["up", f"{flag}={word}"])
    allowed = "number of seconds, 0 or more" if flag == "--drain-s" else "whole number"
    assert capsys.readouterr().err == f"sangam up: error: argument {flag}: must be a {allowed}, not {word!r}\n"


@pytest.mark.parametrize(
    ("command", "flag"),
    [("up", "--run-dir"), ("up", "--story-dir"), ("up", "--model"), ("simulate", "--plot"), ("eval", "--plot")],
)
def test_an_empty_folder_is_not_the_present_one(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, flag, ""])
    assert capsys.readouterr().err == f"sangam {command}: error: argument {flag}: must name a folder, not be empty\n"


def test_unknown_mode_is_refused_with_the_modes_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["up", "--mode", "fast"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(mode in error for mode in ("colocated", "disaggregated", "hybrid"))


@pytest.mark.parametrize("spoil", ["missing", "truncated"])
def test_bad_checkpoint_is_named_before_anything_starts(
    spoil: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    if spoil == "truncated":
        bad.mkdir()
        for file in model_dir.iterdir():
            content = file.read_bytes()
            (bad / file.name).write_bytes(content[:200] if file.suffix == ".safetensors" else content)
    assert main(["up", "--grpc-port", "0", "--model", str(bad), "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(bad / ("model.safetensors" if spoil == "truncated" else "config.json")) in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad", ["file/run", "/proc"], ids=["in a file", "not to be written to"])
@pytest.mark.parametrize("flag", ["--run-dir", "--story-dir"])
def test_a_folder_that_cannot_be_had_is_one_line(
    flag: str, bad: str, tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    run_dir = tmp_path / "run"
    words = ["up", "--model", str(model_dir), "--grpc-port", "0", "--run-dir", str(run_dir)]
    assert main([*words, flag, str(tmp_path / bad)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sangam up: error: {flag}: {tmp_path / bad} cannot be made or written to: ")
    assert not run_dir.exists()
    assert error.count("\n") == 1


def test_ucx_that_is_not_installed_is_said_before_anything_starts(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("common.cli.up.ucx_installed", lambda: False)
    words = ["up", "--model", str(model_dir), "--grpc-port", "0", "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--kv-transport", "ucx"]) == 2
    told = "sangam up: error: --kv-transport: ucx needs the extra: pip install 'sangam[ucx]'\n"
    assert capsys.readouterr().err == told
    assert not (tmp_path / "run").exists()


def test_a_cache_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_a_file = tmp_path / "file"
    in_a_file.write_text("")
    monkeypatch.setenv("SANGAM_CACHE_DIR", str(in_a_file / "cache"))
    assert main(["up", "--grpc-port", "0"]) == 2
    error = capsys.readouterr().err
    assert "SANGAM_CACHE_DIR" in error
    assert error.count("\n") == 1


def test_a_malformed_tokenizer_is_refused_before_anything_starts(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "tokenizer.json").write_text("{")
    assert main(["up", "--model", str(broken), "--grpc-port", "0", "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "tokenizer.json" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
