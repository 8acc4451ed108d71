"""Regenerate the committed gRPC stubs: `python protos/generate.py [--check]`.

Needs the pinned grpcio-tools and mypy-protobuf of the dev extra, so that every machine writes the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent


def generate(into: Path) -> list[Path]:
    """Write the stubs of every .proto below `into`; return their paths relative to it."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("sangam/**/*.proto"))
    well_known = files("grpc_tools") / "_proto"
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT}",
            f"-I{well_known}",
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            f"--python_out={into}",
            f"--pyi_out={into}",
            f"--grpc_python_out={into}",
            f"--mypy_grpc_out=quiet:{into}",
            *protos,
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    return sorted(path.relative_to(into) for path in into.rglob("*_pb2*.py*") if "__pycache__" not in path.parts)


def stale_stubs() -> list[str]:
    """Names of committed stubs that differ from what the protos generate now (missing and left-over ones too)."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        names = set(generate(fresh))
        committed = {p.relative_to(ROOT) for p in ROOT.rglob("sangam/**/*_pb2*.py*") if "__pycache__" not in p.parts}
        differing = {n for n in names & committed if (fresh / n).read_bytes() != (ROOT / n).read_bytes()}
        return sorted(str(name) for name in differing | (names ^ committed))


def main() -> int:
    """Regenerate in place, or with --check only compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a stub is stale")
    if parser.parse_args().check:
        stale = stale_stubs()
        for name in stale:
            print(f"stale stub: protos/{name} (run: python protos/generate.py)", file=sys.stderr)
        return 1 if stale else 0
    for name in generate(ROOT):
        print(f"protos/{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
