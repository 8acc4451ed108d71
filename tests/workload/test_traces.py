"""CSV traces in both styles, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.workload.traces import TraceRow, read_trace


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "header",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "Timestamp,Request tokens,Response tokens",
        "arrival_time,prompt_tokens,output_tokens",
    ],
)
def test_times_and_lengths(tmp_path: Path, header: str):
    rows = read_trace(write(tmp_path, f"{header}\n3.5,10,20\n1.0,30,40\n\n"), option="--workload")
    assert rows == [
        TraceRow(arrival_s=1.0, prompt_tokens=30, output_tokens=40),
        TraceRow(arrival_s=3.5, prompt_tokens=10, output_tokens=20),
    ]


def test_dates_are_times(tmp_path: Path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1,2\n2023-11-16 18:17:05.4799600,3,4\n"
    first, second = read_trace(write(tmp_path, text), option="--workload")
    assert first.arrival_s is not None and second.arrival_s is not None
    assert second.arrival_s - first.arrival_s == pytest.approx(1.5)


def test_lengths_alone_keep_their_order(tmp_path: Path):
    text = 'prompt_len,gen_len,messages\n10,20,"[{""role"": ""user"", ""content"": ""a, b""}]"\n5,6,\n'
    rows = read_trace(write(tmp_path, text), option="--workload")
    assert [(row.arrival_s, row.prompt_tokens, row.output_tokens) for row in rows] == [(None, 10, 20), (None, 5, 6)]


def test_a_missing_column_is_named(tmp_path: Path):
    path = write(tmp_path, "time,prompt_len\n1,2\n")
    with pytest.raises(
        ConfigError, match=r"--workload: .*no column for the output length; allowed: gen_len, .*found: time, prompt_len"
    ):
        read_trace(path, option="--workload")


@pytest.mark.parametrize("row", ["1.0,10", "x,10,20", "1.0,0,20", "1.0,10,2.5", "nan,10,20", "1.0,-4,20"])
def test_a_bad_row_is_named(tmp_path: Path, row: str):
    path = write(tmp_path, f"arrival_time,prompt_tokens,output_tokens\n0.5,1,1\n{row}\n")
    with pytest.raises(ConfigError, match=r"row 3: needs a time"):
        read_trace(path, option="--workload")


@pytest.mark.parametrize("text", ["prompt_len,gen_len\n", ""])
def test_an_empty_trace_is_refused(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match="--workload"):
        read_trace(write(tmp_path, text), option="--workload")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--workload: cannot read .*absent.csv: No such file"):
        read_trace(tmp_path / "absent.csv", option="--workload")
