"""The soak's judgement on figures made up by hand, and its load on a real cluster."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from tests.chaos.settling import Leaks
from tests.chaos.soak import Load, SoakResult, broken_promises, drift, render, resident_bytes
from tests.integration.cluster_help import random_model, running_cluster

CLEAN = Leaks(pages=0, leases=0, requests=0, missing=0, broken_books=0, divergences=0)
STEADY = SoakResult(
    capacity_per_s=2.0,
    asked=100,
    finished=99,
    rss_bytes={"gateway": [50, 90, 99, 100, 104, 96]},
    leaks=CLEAN,
    restarts=0,
    problems=(),
)


def test_memory_is_judged_from_the_third_minute_on() -> None:
    assert drift([50, 90, 99, 100, 104, 95]) == 0.05
    assert drift([50, 90, 99, 100]) is None
    assert broken_promises(STEADY) == []
    grown = dataclasses.replace(STEADY, rss_bytes={"gateway": [50, 90, 99, 100, 106], "decode-0": [1, 1, 1, 1, 1]})
    assert broken_promises(grown) == ["gateway: memory drifted by 6.0%"]


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ({"problems": ("soak-3: QUEUE_FULL",)}, "soak-3: QUEUE_FULL"),
        ({"restarts": 2}, "2 processes were restarted"),
        ({"leaks": dataclasses.replace(CLEAN, leases=1)}, "left over: "),
    ],
)
def test_whatever_is_not_as_promised_is_named(change: dict[str, object], promise: str) -> None:
    (line,) = broken_promises(dataclasses.replace(STEADY, **change))  # type: ignore[arg-type]  # one field at a time
    assert line.startswith(promise)


def test_the_table_has_a_column_for_each_minute() -> None:
    header, row, *rest = render(STEADY).splitlines()
    assert header.split()[-6:] == ["min", "5", "drift", "after", "min", "3"]
    assert row.split()[0] == "gateway" and row.endswith("4.0%")
    assert any("100, 99" in line for line in rest)


def test_resident_memory_is_that_of_the_process() -> None:
    held = bytearray(b"x" * (64 * 2**20))
    assert len(held) < resident_bytes(os.getpid()) < 2**40


async def test_capacity_is_what_a_cluster_answers(tmp_path: Path) -> None:
    async with running_cluster(random_model(tmp_path / "model"), tmp_path / "run") as cluster:
        load = Load(cluster, seed=3)
        capacity_per_s = await load.measure_capacity(2.0)
    assert capacity_per_s > 0.0
    assert load.asked and all(request.finished is not None and not request.problem for request in load.asked)
