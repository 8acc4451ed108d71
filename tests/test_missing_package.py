"""An installation without some extra: what it cannot do is one line that names the extra."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from common.missing_package import EXTRAS_OF, missing_package

ROOT = Path(__file__).resolve().parents[1]
MODEL_DIR = ROOT / "common" / "models" / "sangam-tiny"
MODEL = [f"--model-dir={MODEL_DIR}", "--scheduler-address=127.0.0.1:1"]
WORKER = [package for package, extras in EXTRAS_OF.items() if "worker" in extras]
COMMAND = "import sys; from common.cli.main import main; sys.exit(main(sys.argv[1:]))"
SERVICE = "import runpy; runpy.run_module('services.{}', run_name='__main__')"


def ran_without(packages: list[str], program: str, *words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """`program` in an interpreter that has none of `packages`."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({packages!r})); "
    paths = os.pathsep.join((str(ROOT), str(ROOT / "protos")))
    return subprocess.run(
        [sys.executable, "-c", hide + program, *words],
        env={**os.environ, "PYTHONPATH": paths, "SANGAM_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_package_of_an_extra_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        (re.split(r"[<>=]", line)[0].removesuffix("-cu12"), extra)
        for extra in set(itertools.chain.from_iterable(EXTRAS_OF.values()))
        for line in project["optional-dependencies"][extra]
    }
    assert {(package, extra) for package, extras in EXTRAS_OF.items() for extra in extras} == declared


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "--local", "--prompt", "Hi"),
        ("up", "--grpc-port", "0"),
        ("demo",),
        ("eval", "--per-task", "1"),
        ("bench-kv",),
    ],
    ids=lambda words: words[0],
)
def test_a_command_names_the_extra_that_it_needs(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = ran_without(WORKER, COMMAND, *words, cache=tmp_path)
    (line,) = ran.stderr.splitlines()
    assert re.fullmatch(
        rf"sangam {words[0]}: error: \w+ is not installed; install it with: pip install 'sangam\[worker\]'", line
    )
    assert (ran.returncode, ran.stdout) == (2, "")


@pytest.mark.parametrize(
    ("service", "flags", "package", "extra"),
    [
        ("decode_worker", MODEL, "torch", "worker"),
        ("prefill_worker", MODEL, "torch", "worker"),
        ("gateway", MODEL, "jinja2", "gateway"),
        ("kv_store", ["--registry=redis://127.0.0.1:1"], "redis", "kv-store"),
        ("scheduler", ["--leader-lease=redis://127.0.0.1:1"], "redis", "scheduler"),
    ],
)
def test_a_service_names_the_extra_that_it_needs(
    service: str, flags: list[str], package: str, extra: str, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    words = (*flags, "--port=0", f"--ready-file={ready}")
    ran = ran_without(list(EXTRAS_OF), SERVICE.format(service), *words, cache=tmp_path)
    assert ran.stderr == (
        f"sangam {service}: error: {package} is not installed; install it with: pip install 'sangam[{extra}]'\n"
    )
    assert (ran.returncode, ran.stdout, ready.exists()) == (2, "", False)


KV_STORE_ONCE = """
import asyncio
from common.config import KvStoreConfig, load_config
from services.kv_store.app import serve

async def main():
    stop = asyncio.Event()
    stop.set()
    await serve(load_config(KvStoreConfig, ["--port=0"], "kv_store"), stop)

asyncio.run(main())
"""


def test_a_registry_in_memory_needs_no_extra(tmp_path: Path) -> None:
    ran = ran_without(list(EXTRAS_OF), KV_STORE_ONCE, cache=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_what_no_extra_brings_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        missing_package(ModuleNotFoundError("No module named 'common.nope'", name="common.nope"))
