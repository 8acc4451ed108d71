"""`sangam generate` against a gateway: output, errors, exit codes, Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.cli.main import COMMANDS, main
from common.cli.text_output import TextOutput
from common.random_checkpoint import build_random_checkpoint
from sangam.v1 import types_pb2
from sangam.v1.scheduler_pb2 import ScheduleEvent, ScheduleWaiting
from tests.gateway.running_gateway import EOS, running_gateway
from tests.gateway.scripted_scheduler import (
    ScriptedScheduler,
    block_committed,
    finished,
    play,
    play_then_hang,
    play_then_raise,
    queued,
    revealed_tokens,
    step,
)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos")])}
PROMPT = ["--prompt", "Hi", "--max-tokens", "4", "--block-length", "4"]
WHOLE = play(queued(), step(0, 0, revealed_tokens(b"abcd")), block_committed(0, decode_forwards=0), finished())


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "tiny"
    build_random_checkpoint(path, n_layers=1, n_heads=1, n_kv_heads=1, hidden_size=8, mlp_size=8, max_canvas_tokens=128)
    return path


@pytest.fixture
async def scheduler():
    scripted = ScriptedScheduler()
    async with scripted.serving():
        yield scripted


@pytest.fixture
async def gateway(tiny_model, scheduler, tmp_path):
    async with running_gateway(tiny_model, scheduler.address, tmp_path / "gateway.json") as client:
        yield client


@pytest.fixture
def generate(gateway):
    """Run `sangam generate` with these flags at the gateway, in a thread; returns the exit code."""

    async def run(*flags: str) -> int:
        return await asyncio.to_thread(main, ["generate", *flags, "--address", gateway.address])

    return run


async def test_text_streams_to_stdout_and_a_summary_goes_to_stderr(generate, scheduler, capsys):
    scheduler.script(WHOLE)
    assert await generate(*PROMPT) == 0
    out, err = capsys.readouterr()
    assert out == "abcd\n"
    assert err.startswith("sangam generate: 4 tokens in ") and err.count("\n") == 1
    assert "p0" in err


async def test_a_wait_for_a_worker_is_told_on_stderr(generate, scheduler, capsys):
    waiting = ScheduleEvent(waiting=ScheduleWaiting(reason=types_pb2.WAIT_REASON_NO_WORKER))
    scheduler.script(play(queued(), waiting, step(0, 0, revealed_tokens(b"abcd")), finished()))
    assert await generate(*PROMPT) == 0
    out, err = capsys.readouterr()
    assert out == "abcd\n"
    assert err.startswith("sangam generate: waiting: no worker is there")


async def test_json_is_one_object_with_every_field(generate, scheduler, capsys):
    scheduler.script(
        play(
            queued(),
            step(0, 0, {1: EOS}),
            step(0, 1, {0: 97}),
            block_committed(0, decode_forwards=1, attempts=2),
            finished(types_pb2.FINISH_REASON_STOP),
        )
    )
    assert await generate(*PROMPT, "--json", "--seed", "7") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert out.count("\n") == 1 and err == ""
    expected = {
        "token_ids": [97, EOS],
        "text": "a",
        "finish_reason": "stop",
        "prefill_forwards": 1,
        "decode_forwards": 1,
        "attempts": 2,
        "worker_ids": ["p0", "d0"],
        "seed": 7,
        "cache_mode": "dual",
        "prompt_tokens": 2,
        "request_id": scheduler.requests[0].request_id,
    }
    assert {name: report[name] for name in expected} == expected
    assert 0 < report["time_to_first_commit_s"] <= report["total_s"]
    assert [block["transfer_bytes"] for block in report["blocks"]] == [4096]


@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ([], types_pb2.SamplingParams(confidence_threshold=0.9)),
        (["--threshold", "0.25"], types_pb2.SamplingParams(confidence_threshold=0.25)),
        (["--quota", "3"], types_pb2.SamplingParams(confidence_quota=3)),
        (["--quota", str(2**40)], types_pb2.SamplingParams(confidence_quota=2**31 - 1)),
        (["--dynamic", "1.5"], types_pb2.SamplingParams(confidence_dynamic=1.5)),
        (["--random", "--temperature", "0.5"], types_pb2.SamplingParams(random={}, temperature=0.5)),
    ],
    ids=str,
)
async def test_flags_reach_the_scheduler(generate, scheduler, flags, sampling):
    scheduler.script(WHOLE)
    rest = ["--max-tokens", "4", "--block-length", "4", "--cache", "none", "--ignore-eos", "--seed", "5"]
    assert await generate("--token-ids", "1, 2,3", *rest, *flags) == 0
    (request,) = scheduler.requests
    sampling.seed = 5
    assert request.sampling == sampling
    assert list(request.prompt_token_ids) == [1, 2, 3]
    assert (request.max_tokens, request.block_length_tokens, request.ignore_eos) == (4, 4, True)
    assert request.cache_mode == types_pb2.CACHE_MODE_NONE


@pytest.mark.parametrize(("flags", "prompt"), [([], [260, *b"Hi", 261]), (["--raw"], [*b"Hi"])], ids=["turn", "raw"])
async def test_a_prompt_is_a_turn_of_the_chat_template_unless_raw(scheduler, tmp_path, flags, prompt):
    build_random_checkpoint(tmp_path / "chat", n_layers=1, hidden_size=8, mlp_size=8, max_canvas_tokens=128, chat=True)
    scheduler.script(WHOLE)
    async with running_gateway(tmp_path / "chat", scheduler.address, tmp_path / "chat.json") as gateway:
        words = ["generate", *PROMPT, *flags, "--address", gateway.address]
        assert await asyncio.to_thread(main, words) == 0
    assert list(scheduler.requests[0].prompt_token_ids) == prompt


async def test_the_address_comes_from_the_environment_unless_given(generate, gateway, scheduler, monkeypatch):
    scheduler.script(WHOLE, WHOLE)
    monkeypatch.setenv("SANGAM_ADDRESS", gateway.address)
    assert await asyncio.to_thread(main, ["generate", *PROMPT]) == 0
    monkeypatch.setenv("SANGAM_ADDRESS", "127.0.0.1:1")
    assert await generate(*PROMPT) == 0


async def test_a_timeout_is_the_calls_deadline(generate, scheduler, capsys):
    scheduler.script(play_then_hang(queued(), step(0, 0, {0: 97})))
    assert await generate(*PROMPT, "--timeout", "3") == 1
    out, err = capsys.readouterr()
    assert out == "a\n"
    assert err.startswith("sangam generate: error: ") and "deadline" in err and err.count("\n") == 1


async def test_a_failure_of_the_service_is_exit_code_1(generate, scheduler, capsys):
    scheduler.script(play_then_raise(ValueError("secret")))
    assert await generate(*PROMPT) == 1
    err = capsys.readouterr().err
    assert err.startswith("sangam generate: error: internal error") and "secret" not in err


USER_ERRORS = {
    "empty prompt": (["--prompt", "", "--max-tokens", "4"], "--prompt: "),
    "no ids": (["--token-ids", "", "--max-tokens", "4"], "--token-ids: "),
    "ids that are none": (["--token-ids", "1,x", "--max-tokens", "4"], "--token-ids"),
    "id beyond the wire": (["--token-ids", str(2**70), "--max-tokens", "4"], "--token-ids: "),
    "undecodable prompt": (["--prompt", "\udcff", "--max-tokens", "4"], "--prompt: "),
    "max_tokens 0": (["--prompt", "a", "--max-tokens", "0"], "--max-tokens: "),
    "max_tokens beyond the wire": (["--prompt", "a", "--max-tokens", str(2**70)], "--max-tokens: "),
    "max_tokens no number": (["--prompt", "a", "--max-tokens", "many"], "--max-tokens"),
    "block length 0": ([*PROMPT, "--block-length", "0"], "--block-length: "),
    "NaN temperature": ([*PROMPT, "--temperature", "nan"], "--temperature: "),
    "negative temperature": ([*PROMPT, "--temperature", "-1"], "--temperature: "),
    "threshold": ([*PROMPT, "--threshold", "1.5"], "--threshold: "),
    "quota": ([*PROMPT, "--quota", "0"], "--quota: "),
    "dynamic": ([*PROMPT, "--dynamic", "inf"], "--dynamic: "),
    "negative seed": ([*PROMPT, "--seed", "-1"], "--seed: "),
    "seed of 65 bits": ([*PROMPT, "--seed", str(2**64)], "--seed: "),
    "two strategies": ([*PROMPT, "--quota", "1", "--random"], "--random"),
    "two prompts": ([*PROMPT, "--token-ids", "1"], "--token-ids"),
    "no prompt": (["--max-tokens", "4"], "--prompt"),
    "cache": ([*PROMPT, "--cache", "some"], "--cache"),
    "timeout": ([*PROMPT, "--timeout", "0"], "--timeout"),
    "address": ([*PROMPT, "--address", "nowhere"], "--address"),
    "model without local": ([*PROMPT, "--model", "x"], "--model"),
    "local with address": ([*PROMPT, "--local", "--address", "127.0.0.1:1"], "--address"),
    "local without checkpoint": ([*PROMPT, "--local", "--model", "/nonexistent"], "/nonexistent/config.json"),
}


@pytest.mark.parametrize(("flags", "named"), USER_ERRORS.values(), ids=USER_ERRORS.keys())
def test_a_users_mistake_is_one_line_that_names_it_and_exit_code_2(flags, named, capsys):
    code: object
    try:
        code = main(["generate", *flags])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert code == 2
    assert err.startswith("sangam generate: error: ") and err.count("\n") == 1
    assert named in err
    assert out == ""


async def test_what_only_the_gateway_can_judge_is_exit_code_2_too(generate, scheduler, capsys):
    assert await generate("--token-ids", "1,258", "--max-tokens", "4") == 2
    assert capsys.readouterr().err.startswith("sangam generate: error: --token-ids: ")
    assert await generate("--prompt", "a", "--max-tokens", "4000") == 2
    assert capsys.readouterr().err.startswith("sangam generate: error: --max-tokens: ")
    assert scheduler.requests == []


def test_no_gateway_says_what_to_do(capsys):
    assert main(["generate", *PROMPT, "--address", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("sangam generate: error: no gateway answers at 127.0.0.1:1") and "sangam up" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["generate", *PROMPT], "no gateway"), (["status"], "no scheduler"), (["drain", "decode-0"], "no scheduler")],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
async def test_another_service_at_that_address_is_the_users_mistake(gateway, scheduler, capsys, words, expected):
    address = scheduler.address if words[0] == "generate" else gateway.address
    assert await asyncio.to_thread(main, [*words, "--address", address]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"sangam {words[0]}: error: --address: what answers at {address} is {expected}")
    assert err.count("\n") == 1


async def test_ctrl_c_cancels_the_request_without_a_traceback(gateway, scheduler):
    scheduler.script(play_then_hang(queued(), step(0, 0, {0: 97})))
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "common.cli", "generate", *PROMPT, "--address", gateway.address],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readexactly(1), 30) == b"a"
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert (out, err) == (b"\n", b"")
    await asyncio.wait_for(scheduler.cancelled.wait(), 10)


def test_the_root_command_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_an_unknown_command_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as left:
        main(["bake"])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_terminal_never_gets_control_characters_and_a_pipe_gets_all():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        TextOutput(stream).write("a\x1b[2J\x9b\x7f\n\tb")
    assert terminal.getvalue() == "a␛[2J\ufffd␡\n\tb"
    assert pipe.getvalue() == "a\x1b[2J\x9b\x7f\n\tb"


def test_a_full_disk_under_the_output_is_one_line(tmp_path: Path) -> None:
    words = ["generate", "--local", "--prompt", "hi", "--max-tokens", "4", "--json"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "common.cli", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SANGAM_CACHE_DIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "sangam generate: error: No space left on device"
    assert "Traceback" not in ran.stderr
