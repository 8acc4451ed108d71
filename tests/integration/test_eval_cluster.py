"""`sangam eval` asking a running cluster scores what the engine in process scores."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.integration.cluster_help import random_model, running_cluster

ROOT = Path(__file__).parents[2]
FLAGS = ("--per-task", "1", "--max-tokens", "24", "--block-length", "8", "--cache", "dual", "--quota", "3", "--json")


async def evaluated(*flags: str) -> dict[str, Any]:
    """The document that the command prints, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos")])}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "common.cli", "eval", *FLAGS, *flags), stdout=asyncio.subprocess.PIPE, env=environment
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    document: dict[str, Any] = json.loads(out)
    return document


async def test_a_cluster_scores_as_the_engine_in_process_does(tmp_path):
    model_dir = random_model(tmp_path / "model")
    local = await evaluated("--model", str(model_dir))
    async with running_cluster(model_dir, tmp_path / "run") as cluster:
        remote = await evaluated("--address", cluster.gateway_address, "--concurrency", "8")
    assert remote["address"] == cluster.gateway_address and remote["questions"] == local["questions"] == 12
    for there, here in zip(remote["settings"], local["settings"], strict=True):
        # A cluster tells of the answer only, not of what was revealed behind its end.
        assert there["overall"].pop("revealed_tokens") is there["overall"].pop("revealed_tokens_per_forward") is None
        assert here["overall"].pop("revealed_tokens") >= here["overall"]["answer_tokens"]
        here["overall"].pop("revealed_tokens_per_forward")
        assert there["overall"] == here["overall"]
        assert there["tasks"].keys() == here["tasks"].keys()
