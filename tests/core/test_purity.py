"""Which parts may not pull in which libraries, asked of a fresh interpreter."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "common" / "core"

IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)
print(json.dumps([names, sorted(sys.modules)]))
"""


def modules_after_importing(package: str) -> set[str]:
    """`sys.modules` of a fresh interpreter that has imported every module of `package`."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, package],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    names, loaded = json.loads(done.stdout)
    assert len(names) >= 2, f"{package} has no modules to ask about"
    return set(loaded)


def test_the_core_imports_nothing_but_data_modules():
    loaded = modules_after_importing("common.core")
    foreign = {"asyncio", "threading", "random", "socket", "selectors", "logging", "subprocess", "concurrent"}
    foreign |= {"torch", "numpy", "grpc", "google", "redis", "sangam", "safetensors", "transformers", "opentelemetry"}
    assert not loaded & foreign
    ours = {name for name in loaded if name.startswith("common.") and not name.startswith("common.core")}
    assert ours == {"common.errors"}


def imported(source: Path) -> set[str]:
    """Top-level names of the modules that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("source", sorted(CORE.rglob("*.py")), ids=lambda path: path.stem)
def test_time_and_chance_are_passed_in(source):
    """The interpreter itself loads `time`, so the files are asked instead of `sys.modules`."""
    assert not imported(source) & {"time", "datetime", "random", "secrets", "uuid", "os", "logging", "warnings"}


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("services.gateway", {"torch", "safetensors"}),
        ("services.scheduler", {"torch", "safetensors", "numpy", "transformers", "tokenizers"}),
        ("services.kv_store", {"torch", "safetensors", "numpy", "transformers", "tokenizers"}),
        ("common.rpc", {"torch", "safetensors", "numpy", "transformers", "tokenizers"}),
    ],
)
def test_services_without_tensors_load_no_torch(package, absent):
    assert not modules_after_importing(package) & absent


def test_the_check_itself_would_notice_torch():
    assert "torch" in modules_after_importing("common.engine")
