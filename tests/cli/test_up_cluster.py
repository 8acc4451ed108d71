"""How a cluster is laid out, without starting one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.bench.percentile import percentile
from common.cli.cluster_config import ClusterConfig
from common.core.ids import ServingMode


def config(**settings: Any) -> ClusterConfig:
    base: dict[str, Any] = {"mode": ServingMode.HYBRID, "prefill_workers": 1, "decode_workers": 1}
    return ClusterConfig(model_dir=Path("/model"), run_dir=Path("/run"), **{**base, **settings})


def test_cores_are_shared_among_the_workers_and_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert config(prefill_workers=2, decode_workers=3).threads_per_worker == 3
    assert config(prefill_workers=0, decode_workers=1).threads_per_worker == 15
    assert config(prefill_workers=4, decode_workers=4).threads_per_worker == 1
    assert config(prefill_workers=20, decode_workers=20).threads_per_worker == 1
    assert config(torch_threads=5).threads_per_worker == 5


def test_devices_are_a_list() -> None:
    assert config(device="cpu").devices == ("cpu",)
    assert config(device="cuda:0,cuda:1").devices == ("cuda:0", "cuda:1")


def test_percentile_is_the_nearest_rank() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0.25, 0.5, 0.75, 0.9, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([float(value) for value in range(1, 101)], 0.9) == 90.0
