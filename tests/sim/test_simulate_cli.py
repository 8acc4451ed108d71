"""`sangam simulate`: its outputs, and one line for every mistake."""

from __future__ import annotations

import importlib.util
import json
import operator
import re
from dataclasses import fields
from pathlib import Path

import pytest

from common.cli.main import main
from common.config import SchedulerServiceConfig, WorkerConfig
from common.sim.core_options import core_options, option_name

QUICK = ["--requests", "12", "--prompt-tokens", "fixed:200", "--output-tokens", "uniform:20:90"]


def simulate(*words: str) -> int:
    return main(["simulate", *QUICK, *words])


def test_a_run_prints_every_metric(capsys: pytest.CaptureFixture[str]):
    assert simulate("--mode", "hybrid") == 0
    captured = capsys.readouterr()
    for name in ("end to end", "prefill queueing", "decode time", "first commit", "decode gap", "KV transfer"):
        assert name in captured.out
    for name in ("utilisation", "overflow", "hash of all effects", "12 of 12"):
        assert name in captured.out
    assert captured.err == ""


def test_json_says_the_same_twice(capsys: pytest.CaptureFixture[str]):
    outputs = []
    for _ in range(2):
        assert simulate("--mode", "colocated", "--json", "--seed", "3") == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    (run,) = json.loads(outputs[0])["runs"]
    metrics = run["metrics"]
    assert (metrics["requests"], metrics["finished"], metrics["unfinished"]) == (12, 12, 0)
    latency = metrics["latency"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]
    assert metrics["kv_transfer"] == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    assert 0 < metrics["utilisation"]["decode"] <= 1


def test_a_sweep_runs_every_combination(capsys: pytest.CaptureFixture[str]):
    assert simulate("--sweep", "qps=2,30", "--sweep", "mode=hybrid,colocated", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    points = [(run["point"]["qps"], run["point"]["mode"]) for run in runs]
    assert points == [("2", "hybrid"), ("2", "colocated"), ("30", "hybrid"), ("30", "colocated")]
    by_point = {point: run["metrics"]["latency"]["mean"] for point, run in zip(points, runs, strict=True)}
    assert by_point["30", "colocated"] > by_point["2", "colocated"]
    assert simulate("--sweep", "qps=2,30") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_plots_are_written(tmp_path: Path):
    assert simulate("--sweep", "qps=2,30", "--plot", str(tmp_path / "plots")) == 0
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == sorted(["latency.png"] + [f"{kind}-qps-{n}.png" for kind in ("cdf", "timeline") for n in (2, 30)])
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())


def test_a_swept_path_is_no_folder_of_plots(tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text("prompt_len,gen_len\n100,40\n", encoding="utf-8")
    plots = tmp_path / "plots"
    assert main(["simulate", "--requests", "1", "--sweep", f"workload=arxiv,{trace}", "--plot", str(plots)]) == 0
    assert len(list(plots.iterdir())) == 5


def test_a_trace_shorter_than_asked_ends_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n0,100,40\n0.5,50,20\n", encoding="utf-8")
    assert main(["simulate", "--workload", str(trace), "--requests", "50", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["runs"][0]["metrics"]["finished"] == 2
    assert captured.err.splitlines() == [f"note: {trace} holds 2 requests, 50 were asked for: the run ends after 2"]


def test_lengths_alone_get_arrivals(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = tmp_path / "t.csv"
    trace.write_text("prompt_len,gen_len\n100,40\n50,20\n80,33\n", encoding="utf-8")
    assert main(["simulate", "--workload", str(trace), "--requests", "3", "--qps", "1000", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["runs"][0]["metrics"]["finished"] == 3
    assert captured.err == ""


def test_calibrated_prices_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    steps = [
        {"prefill_tokens": p, "decode_tokens": d, "seconds": 1.0 + 0.01 * p + 0.1 * d}
        for p in (0, 300)
        for d in (0, 32, 64)
    ]
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"steps": steps}), encoding="utf-8")
    one = ["--requests", "1", "--prompt-tokens", "fixed:68", "--output-tokens", "fixed:32", "--tokens-per-step", "1"]
    assert main(["simulate", *one, "--mode", "colocated", "--calibrate", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    # A prefill of 100 and 31 decode steps of 32 tokens, and four messages of 0.2 ms.
    latency = json.loads(captured.out)["runs"][0]["metrics"]["latency"]["mean"]
    assert latency == pytest.approx(1 + 0.01 * 100 + 31 * (1 + 0.1 * 32), abs=0.002)
    assert "1e+03 ms" in captured.err and "per decode token" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "b200"], r"--preset: 'b200' is not known; allowed: h100-llada-8b, h100-dream-7b"),
        (["--workload", "novels"], r"--workload: 'novels' is not known; allowed: sharegpt, arxiv, or a CSV file"),
        (["--mode", "mixed"], r"--mode: 'mixed' is not known; allowed: colocated, disaggregated, hybrid"),
        (["--decode-policy", "best"], r"--decode-policy: 'best' is not known; allowed: .*max_free_pages"),
        (["--prefill-policy", "best"], r"--prefill-policy: 'best' is not known; allowed: least_outstanding_tokens"),
        (["--qps", "-1"], r"--qps: '-1' is not allowed; allowed: a number above 0"),
        (["--qps", "nan"], r"--qps: 'nan' is not allowed; allowed: a number above 0"),
        (["--requests", "0"], r"--requests: '0' is not allowed; allowed: a whole number from 1 to 10000000"),
        (["--seed", "x"], r"--seed: 'x' is not allowed; allowed: a whole number of at least 0"),
        (["--token-budget", "0"], r"--token-budget: '0' is not allowed; allowed: a whole number of at least 1"),
        (["--tokens-per-step", "0.5"], r"--tokens-per-step: '0.5' is not allowed; allowed: a number of at least 1"),
        (["--overflow", "maybe"], r"--overflow: 'maybe' is not known; allowed: on, off"),
        (["--arrivals", "trace"], r"--arrivals: trace needs a CSV file .*allowed: poisson, gamma:CV"),
        (["--faults", "fire=1"], r"--faults: 'fire=1' is not a fault; allowed: crash=N, hang=N"),
        (["--kv-pages", "4"], r"--kv-pages: request 0 has a canvas of \d+ tokens.*allowed: at least \d+ pages"),
        (["--prompt-tokens", "fixed:5000"], r"--workload: request 0 has a canvas .*allowed: canvases of at most 4128"),
        (["--max-gen-len", "4096"], r"--max-gen-len: request 0 has a canvas .*allowed: canvases of at most 4128"),
        (["--max-gen-len", "8"], r"--max-gen-len: request \d has an output of \d+ tokens; allowed: 0, or at least"),
        (["--requests", "1e6"], r"--requests: '1e6' is not allowed; allowed: a whole number from 1 to 10000000"),
        (["--requests", "9" * 30], r"--requests: '9{30}' is not allowed; allowed: a whole number from 1 to 10000000"),
        (["--seed", "9" * 5000], r"--seed: '9{80}\.\.\.' is not allowed; allowed: a whole number of at least 0"),
        (["--kv-pages", "9" * 30], r"--kv-pages: .* is not allowed; allowed: a whole number from 1 to 1000000"),
        (["--decode-workers", "9" * 30], r"--decode-workers: .* allowed: a whole number from 0 to 100000"),
        (["--cells", "99999"], r"--cells: 799992 workers are too many; allowed: at most 100000 in all cells"),
        (["--topology-alpha", "1.5"], r"--topology-alpha: .*allowed: a number of at least 0 and at most 1"),
        (["--kv-lease", "0"], r"--kv-lease: '0' is not allowed; allowed: a number above 0"),
        (["--workload", ""], r"--workload: '' is not known; allowed: sharegpt, arxiv, or a CSV file"),
        (["--workload", "/"], r"--workload: cannot read /: Is a directory; allowed: a CSV file in UTF-8"),
        (["--workload", "gone.csv"], r"--workload: cannot read gone.csv: No such file.*; allowed: a CSV file in UTF-8"),
        (["--workload", "n" * 5000], r"--workload: 'n+' is not known; allowed: sharegpt"),
        (["--calibrate", "gone.json"], r"--calibrate: cannot read gone.json: No such file.*; allowed: a JSON file"),
        (["--prefill-workers", "0", "--decode-workers", "0"], r"--prefill-workers: .*allowed: at least 1"),
        (["--decode-workers", "0", "--mode", "hybrid"], r"--decode-workers: .*allowed: a whole number of at least 1"),
        (["--prefill-workers", "0", "--mode", "disaggregated"], r"--prefill-workers: .*allowed: at least 1"),
        (["--sweep", "speed=1,2"], r"--sweep: 'speed=1,2' is not allowed; allowed: OPTION=A,B,... of preset"),
        (["--sweep", "qps=1,,2"], r"--sweep: 'qps=1,,2' is not allowed"),
        (["--sweep", "qps=1,-2"], r"--qps: '-2' is not allowed"),
        (["--sweep", "qps=1,2", "--sweep", "qps=3"], r"--sweep: qps is swept twice; allowed: each option once"),
        (["--plot", "/proc/plots"], r"--plot: /proc/plots cannot be made or written to: .*; allowed: a folder"),
        (["--plot", "/proc"], r"--plot: /proc cannot be made or written to: .*; allowed: a folder"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert simulate(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("sangam simulate: error: ")
    assert re.search(message, line), line


def test_an_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        simulate("--nonsense\n5")
    assert capsys.readouterr().err == "sangam simulate: error: unrecognized arguments: --nonsense 5\n"


CSV_HEADER = b"arrival_time,prompt_tokens,output_tokens\n"
STEP = '[{"prefill_tokens": %s, "decode_tokens": 0, "seconds": %s}]'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"has no column for the prompt length; allowed: prompt_len, .*\(found: none\)"),
        (b"arrival_time,prompt_tokens\n0,5\n", r"no column for the output length; allowed: gen_len, .*found: arrival"),
        (CSV_HEADER, r"holds no requests; allowed: a CSV file in UTF-8 with at least one row"),
        (
            (CSV_HEADER + b"0,5,40\n").decode().encode("utf-16"),
            r"cannot read .*can't decode.*; allowed: a CSV file in UTF-8",
        ),
        (CSV_HEADER + b"0,1\x00,2\n", r"row 2: needs a time, and whole numbers of tokens of at least 1"),
        (CSV_HEADER + b"0,5,40\nnan,5,40\n", r"row 3: needs a time, and whole numbers"),
        (CSV_HEADER + b"0,5,-40\n", r"row 2: needs a time, and whole numbers"),
        (CSV_HEADER + b"0,5\n", r"row 2: needs a time, and whole numbers"),
        (
            CSV_HEADER + b"0,5," + b"9" * 25 + b"\n",
            r"has a canvas of \d+ tokens, which fits no worker; allowed: canvases",
        ),
        (CSV_HEADER + b'0,5,"' + b"x" * 200_000, r"cannot read .*field larger than field limit"),
    ],
)
def test_a_bad_trace_is_one_line(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert main(["simulate", "--workload", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"error: --workload: .*{message}", line), line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is not JSON: .*; allowed: a JSON file with a list of steps"),
        ("[" * 100_000, r"is not JSON: .*; allowed: a JSON file with a list of steps"),
        ("{}", r"holds no list of steps; allowed: a JSON file with a list of steps"),
        ("[]", r"these step times fit no model; steps of different sizes"),
        ("[1]", r"step 0: needs numbers prefill_tokens, decode_tokens, seconds"),
        (STEP % ("Infinity", 1), r"step 0: needs numbers"),
        (STEP % ("9" * 400, 1), r"step 0: tokens must be 0 to 1000000000, seconds above 0 and at most 1000000"),
        (STEP % (-1, 1), r"step 0: tokens must be 0 to"),
        (STEP % (1, "NaN"), r"step 0: tokens must be 0 to"),
        (STEP % (1, 1e308), r"step 0: tokens must be 0 to"),
    ],
)
def test_a_bad_calibration_is_one_line(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "steps.json"
    path.write_text(content, encoding="utf-8")
    assert simulate("--calibrate", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"error: --calibrate: .*{message}", line), line


@pytest.mark.parametrize("word", ["-1", "0", "1", "2"])
def test_limits_are_those_of_the_services(word: str, capsys: pytest.CaptureFixture[str]):
    for config in (SchedulerServiceConfig, WorkerConfig):
        for setting in fields(config):
            flag = f"--{option_name(setting.name)}"
            if flag[2:] not in core_options() or setting.type not in ("int", "float", "TokensOrAuto"):
                continue
            metadata = setting.metadata
            limits = (metadata["minimum"], metadata["above"], metadata["maximum"])
            allowed = all(
                limit is None or holds(float(word), limit)
                for holds, limit in zip((operator.ge, operator.gt, operator.le), limits, strict=True)
            )
            # What a service allows may still be too small for these requests: then it is not the option's limits.
            code = simulate(f"{flag}={word}", "--requests", "1")
            refused = code == 2 and "is not allowed" in capsys.readouterr().err
            assert refused == (not allowed), flag


def test_a_missing_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert simulate("--plot", "anywhere") == 2
    assert capsys.readouterr().err == (
        "sangam simulate: error: --plot: matplotlib is not installed; install it with: pip install 'sangam[plots]'\n"
    )


def test_help_names_every_option_of_the_cores(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["simulate", "--help"])
    text = capsys.readouterr().out
    for option in ("--token-budget", "--overload-threshold", "--max-batch-size", "--decode-policy", "--sweep"):
        assert option in text
