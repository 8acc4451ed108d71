"""The outer shell of a service: exit codes, one-line mistakes, the ready file; and the health check as a command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from common.config import KvStoreConfig
from common.errors import CheckpointError, ConfigError
from common.rpc.service import run_service, write_ready_file
from tests.rpc.scripted import SERVICE_NAME, Loopback, ScriptedGateway


def run(main, *argv: str) -> None:
    run_service("kv_store", KvStoreConfig, main, list(argv))


def test_main_gets_its_settings_and_its_return_is_success():
    seen = []

    async def main(config: KvStoreConfig, stop: asyncio.Event) -> None:
        seen.append((config.port, stop.is_set()))

    run(main, "--port", "7")
    assert seen == [(7, False)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_stop_and_main_ends_by_itself(number):
    ended = []

    async def main(config: KvStoreConfig, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # an impatient second one changes nothing
        async with asyncio.timeout(10):
            await stop.wait()
        ended.append(True)

    run(main)
    assert ended == [True]


async def _in_a_task_group(error: Exception) -> None:
    async with asyncio.TaskGroup():
        raise error


@pytest.mark.parametrize("error", [ConfigError("--x: bad"), CheckpointError("model.safetensors: no tensor w")])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_users_mistake_ends_with_one_line_and_code_2(error, grouped, capsys):
    async def main(config: KvStoreConfig, stop: asyncio.Event) -> None:
        if grouped:
            await _in_a_task_group(error)
        raise error

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"sangam kv_store: error: {error}\n"


@pytest.mark.parametrize("grouped", [False, True])
def test_a_bug_is_not_dressed_up_as_a_mistake(grouped):
    async def main(config: KvStoreConfig, stop: asyncio.Event) -> None:
        if grouped:
            await _in_a_task_group(KeyError("bug"))
        raise KeyError("bug")

    with pytest.raises(ExceptionGroup if grouped else KeyError):
        run(main)


def test_bad_settings_end_before_main_runs(capsys):
    async def main(config: KvStoreConfig, stop: asyncio.Event) -> None:
        raise AssertionError("must not run")

    with pytest.raises(SystemExit) as caught:
        run(main, "--port", "many")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "sangam kv_store: error: --port: must be a whole number, not 'many'\n"


def test_ready_file_holds_the_facts_and_nothing_else_is_left(tmp_path: Path):
    path = tmp_path / "ready.json"
    write_ready_file(path, service="decode_worker", address="127.0.0.1:5", worker_id="d0", incarnation=3)
    assert json.loads(path.read_text()) == {
        "service": "decode_worker",
        "address": "127.0.0.1:5",
        "pid": os.getpid(),
        "worker_id": "d0",
        "incarnation": 3,
    }
    write_ready_file(path, service="kv_store", address="127.0.0.1:6")  # replaced, not appended to
    assert json.loads(path.read_text()) == {"service": "kv_store", "address": "127.0.0.1:6", "pid": os.getpid()}
    assert list(tmp_path.iterdir()) == [path]


def test_ready_file_that_cannot_be_written_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--ready-file: cannot write .*No such file"):
        write_ready_file(tmp_path / "missing" / "x", service="kv_store", address="h:1")


async def healthcheck(*argv: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "common.rpc.healthcheck", *argv, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_healthcheck_command_tells_by_its_exit_code(python_path):
    async with Loopback(ScriptedGateway()) as loopback:
        assert await healthcheck(loopback.address) == (0, f"{loopback.address}: SERVING\n")
        assert (await healthcheck(loopback.address, "--service", SERVICE_NAME))[0] == 0
        assert (await healthcheck(loopback.address, "--service", "sangam.v1.Nothing"))[0] == 1
        await loopback.server.set_serving(False)
        assert await healthcheck(loopback.address) == (1, f"{loopback.address}: NOT SERVING\n")
        address = loopback.address
    assert (await healthcheck(address, "--timeout-s", "1"))[0] == 1
