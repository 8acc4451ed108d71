"""`sangam generate --local`: the engine in process, with the same report as through the services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from common.cli.main import main
from common.core.params import default_seed
from common.random_checkpoint import build_random_checkpoint

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "tiny"
    build_random_checkpoint(path, max_canvas_tokens=2048)
    return path


def report_of(capsys, *flags: str) -> Any:
    assert main(["generate", "--local", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_text_in_text_out(model_dir, capsys):
    flags = ["--model", str(model_dir), "--prompt", "Hello", "--max-tokens", "20", "--threshold", "0.5", "--ignore-eos"]
    report = report_of(capsys, *flags)
    assert len(report["token_ids"]) == 20
    assert report["seed"] == default_seed(prompt_token_ids=list(b"Hello"), max_tokens=20, block_length_tokens=32)
    assert (report["finish_reason"], report["prefill_forwards"], report["attempts"]) == ("length", 1, 1)
    assert report["worker_ids"] == ["local"]
    assert 0 < report["time_to_first_commit_s"] <= report["total_s"]
    assert sum(block["decode_forwards"] for block in report["blocks"]) == report["decode_forwards"]
    assert main(["generate", "--local", *flags]) == 0
    out, err = capsys.readouterr()
    assert out == report["text"] + ("" if report["text"].endswith("\n") else "\n")
    assert err.startswith("sangam generate: 20 tokens in ") and err.count("\n") == 1


def test_a_prompt_is_a_turn_of_the_models_chat_template_unless_raw(tmp_path, capsys):
    build_random_checkpoint(tmp_path / "chat", max_canvas_tokens=128, chat=True)
    flags = ["--model", str(tmp_path / "chat"), "--prompt", "Hello", "--max-tokens", "8"]
    turn, raw = report_of(capsys, *flags), report_of(capsys, *flags, "--raw")
    # "<|user|>Hello<|assistant|>": five bytes between two role tokens.
    assert (turn["prompt_tokens"], raw["prompt_tokens"]) == (7, 5)
    ids = ",".join(map(str, [260, *b"Hello", 261]))
    same = report_of(capsys, "--model", str(tmp_path / "chat"), "--token-ids", ids, "--max-tokens", "8")
    assert same["token_ids"] == turn["token_ids"]
    assert (
        len(report_of(capsys, "--model", str(tmp_path / "chat"), "--prompt", "Hi", "--ignore-eos")["token_ids"]) == 64
    )


def golden_runs() -> Iterator[Any]:
    for folder in ("llada-gqa", "dream-gqa"):
        document = json.loads((GOLDEN / folder / "golden.json").read_text())
        for run in document["runs"][1::4]:
            yield pytest.param(folder, document["gen_length"], run, id=f"{folder}-{run['tensor']}")


@pytest.mark.parametrize(("folder", "gen_length", "run"), list(golden_runs()))
def test_golden_runs_through_the_command_line(folder, gen_length, run, capsys):
    with safe_open(GOLDEN / folder / "golden.safetensors", "pt") as tensors:
        prompt = tensors.get_tensor("prompt").flatten().tolist()
        canvas = tensors.get_tensor(run["tensor"]).flatten().tolist()
    strategy = ["--threshold", str(run["threshold"])] if run["quota"] is None else ["--quota", str(run["quota"])]
    report = report_of(
        capsys,
        *["--model", str(GOLDEN / folder), "--token-ids", ",".join(map(str, prompt)), *strategy, "--ignore-eos"],
        *["--max-tokens", str(gen_length), "--block-length", str(run["block_length"]), "--cache", run["cache"]],
    )
    assert report["token_ids"] == canvas[len(prompt) :]
    assert report["prefill_forwards"] + report["decode_forwards"] == run["forwards"]


def test_a_model_without_a_tokenizer_refuses_text_by_name(capsys):
    flags = ["--model", str(GOLDEN / "llada-gqa"), "--prompt", "a", "--max-tokens", "4"]
    assert main(["generate", "--local", *flags]) == 2
    assert capsys.readouterr().err.startswith("sangam generate: error: --prompt: ")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--token-ids", "1,258"], "--token-ids: "),
        (["--token-ids", "1,9999"], "--token-ids: "),
        (["--prompt", "a", "--max-tokens", "2048"], "--max-tokens: "),
        (["--prompt", "a", "--kv-pages", "1"], "--max-tokens: "),
        (["--prompt", "a", "--device", "abacus"], "device"),
    ],
    ids=["mask id", "vocabulary", "canvas", "pages", "device"],
)
def test_bad_input_is_one_line_and_exit_code_2(model_dir, capsys, flags, named):
    assert main(["generate", "--local", "--model", str(model_dir), "--max-tokens", "32", *flags]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"sangam generate: error: {named}") and err.count("\n") == 1
    assert out == ""


def test_a_deadline_ends_it_with_exit_code_1(model_dir, capsys):
    flags = ["--model", str(model_dir), "--prompt", "Hello", "--max-tokens", "200", "--quota", "1", "--ignore-eos"]
    assert main(["generate", "--local", *flags, "--timeout", "0.000001"]) == 1
    assert "deadline" in capsys.readouterr().err


def test_without_a_model_the_one_in_the_package_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SANGAM_CACHE_DIR", str(tmp_path / "cache"))
    assert report_of(capsys, "--prompt", "Convert 5 days to hours.", "--max-tokens", "32")["text"] == "5*24=120 hours"
    assert not (tmp_path / "cache").exists()


async def test_ctrl_c_ends_it_without_a_traceback(model_dir):
    root = Path(__file__).parents[2]
    flags = ["--model", str(model_dir), "--prompt", "Hello", "--max-tokens", "2000", "--block-length", "1"]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "common.cli", "generate", "--local", *flags, "--ignore-eos"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "protos")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readexactly(1), 60)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (130, b"")
