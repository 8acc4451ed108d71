"""An installation without some extra: what it cannot do is one line that names the extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from common.missing_package import EXTRA_OF, missing_package

ROOT = Path(__file__).resolve().parents[1]
MODEL_DIR = ROOT / "common" / "models" / "sangam-tiny"
WORKER = [package for package, extra in EXTRA_OF.items() if extra == "worker"]
COMMAND = "import sys; from common.cli.main import main; sys.exit(main(sys.argv[1:]))"
SERVICE = (
    "import sys; from common.core.ids import Role; from common.worker.main import run_worker; run_worker(Role.DECODE)"
)


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
        for extra in set(EXTRA_OF.values())
        for line in project["optional-dependencies"][extra]
    }
    assert set(EXTRA_OF.items()) == declared


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


def test_a_worker_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    flags = (f"--model-dir={MODEL_DIR}", "--scheduler-address=127.0.0.1:1", f"--ready-file={tmp_path / 'ready'}")
    ran = ran_without(WORKER, SERVICE, *flags, cache=tmp_path)
    (line,) = ran.stderr.splitlines()
    assert line.startswith("sangam decode_worker: error: torch is not installed; ")
    assert line.endswith("pip install 'sangam[worker]'")
    assert ran.returncode == 2 and not (tmp_path / "ready").exists()


def test_what_no_extra_brings_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        missing_package(ModuleNotFoundError("No module named 'common.nope'", name="common.nope"))
