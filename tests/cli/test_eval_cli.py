"""`sangam eval` as a command: its tables, its JSON, its plot, and what it says of a mistake."""

from __future__ import annotations

import json

import pytest

from common.cli.main import main
from common.corpus.questions import TASKS
from common.random_checkpoint import build_random_checkpoint

SMALL = ("--per-task", "1", "--max-tokens", "8", "--block-length", "4", "--tasks", "addition,sorting")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "model"
    build_random_checkpoint(path, n_layers=1, n_heads=1, n_kv_heads=1, hidden_size=8, mlp_size=8, max_canvas_tokens=256)
    return path


def evaluation(model_dir, *flags: str) -> int:
    return main(["eval", "--model", str(model_dir), *flags])


def test_a_run_without_settings_compares_the_three_cache_modes(model_dir, capsys):
    assert evaluation(model_dir, *SMALL) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[1:4] for line in out.splitlines()[2:8]]
    assert rows == [
        [mode, *way] for way in (["quota", "1"], ["threshold", "0.9"]) for mode in ("none", "prefix", "dual")
    ]
    assert out.startswith("2 questions;") and "addition" in out and "word_problems" not in out
    assert "Traceback" not in err


def test_json_and_plot_of_a_named_grid(model_dir, tmp_path, capsys):
    grid = ("--cache", "dual", "--threshold", "0.5,0.9", "--dynamic", "2", "--block-length", "4,8")
    flags = ("--tasks", "units", "--per-task", "3", "--seed", "7", "--max-tokens", "8", *grid)
    assert evaluation(model_dir, *flags, "--json", "--wrong", "1", "--plot", str(tmp_path / "plots")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["questions"], document["seed"], document["tasks"]) == (3, 7, ["units"])
    settings = [(row["cache"], row["strategy"], row["block_length_tokens"]) for row in document["settings"]]
    assert len(set(settings)) == 2 * 3 * 2
    assert {row["overall"]["questions"] for row in document["settings"]} == {3}
    for row in document["settings"]:
        assert len(row["wrong"]) == min(1, 3 - row["overall"]["right"])
        if row["cache"] == "none":
            assert row["overall"]["token_agreement"] == 1.0
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["quality.png"]


def test_the_same_seed_scores_the_same(model_dir, capsys):
    documents = []
    for concurrency in ("1", "5"):
        assert evaluation(model_dir, *SMALL, "--json", "--concurrency", concurrency) == 0
        document = json.loads(capsys.readouterr().out)
        documents.append([row["overall"] for row in document["settings"]])
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--cache", "none,full"], "--cache: 'full' is not allowed; allowed: dual, prefix, none, separated by commas"),
        (["--threshold", "0.9,1.5"], "--threshold: '1.5' is not allowed; allowed: numbers from 0 to 1, separated by"),
        (["--threshold", "nan"], "--threshold: 'nan' is not allowed"),
        (["--quota", "0"], "--quota: '0' is not allowed; allowed: whole numbers of at least 1, separated by commas"),
        (["--quota", "1,,2"], "--quota: '' is not allowed"),
        (["--dynamic", "-1"], "--dynamic: '-1' is not allowed; allowed: numbers above 0, separated by commas"),
        (["--block-length", "8,x"], "--block-length: 'x' is not allowed; allowed: whole numbers of at least 1"),
        (["--tasks", "cooking"], f"--tasks: 'cooking' is not allowed; allowed: {', '.join(TASKS)}, separated by"),
        (["--per-task", "0"], "--per-task: must be at least 1, not 0"),
        (["--max-tokens", "-3"], "--max-tokens: must be at least 1, not -3"),
        (["--concurrency", "0"], "--concurrency: must be at least 1, not 0"),
        (["--wrong", "-1"], "--wrong: must be at least 0, not -1"),
        (["--max-tokens", "1000", "--per-task", "1"], "--max-tokens: "),
        (["--block-length", "512", "--per-task", "1"], "--block-length: 512 is above the model's longest canvas"),
        (["--plot", "/proc/plots"], "--plot: /proc/plots cannot be made"),
        (["--device", "abacus", "--per-task", "1"], "device: 'abacus' is not one of cpu, cuda, cuda:N"),
    ],
)
def test_a_mistake_is_one_line_naming_option_and_what_is_allowed(model_dir, flags, complaint, capsys):
    assert evaluation(model_dir, *flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"sangam eval: error: {complaint}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--address", "nowhere"], "--address: 'nowhere' is not allowed; allowed: HOST:PORT"),
        (["--address", "127.0.0.1:1", "--local"], "--local: not with --address"),
        (["--address", "127.0.0.1:1", "--device", "cpu"], "--device: not with --address"),
    ],
)
def test_an_address_excludes_what_is_local(flags, complaint, capsys):
    assert main(["eval", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"sangam eval: error: {complaint}")


def test_no_gateway_there_is_one_line(capsys):
    assert main(["eval", "--address", "127.0.0.1:1", "--per-task", "1", "--tasks", "addition"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("sangam eval: error: no gateway answers at 127.0.0.1:1") and err.count("\n") == 1
