"""Goldens of public reference implementations: whole generations, forward counts, full logits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file

from common.core.params import CacheMode, ConfidenceQuota, ConfidenceThreshold
from common.core.work import RequestSpec
from tests.engine.checkpoints import GOLDEN_DIR, GOLDEN_NAMES
from tests.engine.runs import request


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """One finished canvas of a reference implementation and the forwards it took."""

    name: str
    label: str
    spec: RequestSpec
    canvas: tuple[int, ...]
    forwards: int


def golden_runs() -> list[GoldenRun]:
    """Every run of every golden checkpoint."""
    runs = []
    for name in GOLDEN_NAMES:
        tensors = load_file(GOLDEN_DIR / name / "golden.safetensors")
        document = json.loads((GOLDEN_DIR / name / "golden.json").read_text())
        runs += [_run(name, document, tensors, entry) for entry in document["runs"]]
    return runs


def full_logits(name: str) -> tuple[list[int], torch.Tensor]:
    """A whole canvas and the reference's raw logits for every row of it."""
    tensors = load_file(GOLDEN_DIR / name / "golden.safetensors")
    key = "full_logits" if "full_logits" in tensors else "full_logits_raw"
    return tensors["canvas"].tolist(), tensors[key]


def _run(name: str, document: dict[str, Any], tensors: dict[str, torch.Tensor], entry: dict[str, Any]) -> GoldenRun:
    quota, threshold = entry["quota"], entry["threshold"]
    spec = request(
        tuple(tensors["prompt"].tolist()),
        max_tokens=document["gen_length"],
        block_length_tokens=entry["block_length"],
        cache_mode=CacheMode(entry["cache"]),
        strategy=ConfidenceThreshold(threshold) if threshold is not None else ConfidenceQuota(quota),
    )
    return GoldenRun(
        name=name,
        label=f"{name}-{entry['tensor']}",
        spec=spec,
        canvas=tuple(tensors[entry["tensor"]].tolist()),
        forwards=entry["forwards"],
    )
