"""Print the requirements of the project and of the extras named as arguments, one a line.

An image installs them before the code is copied in, so that a change of code leaves that layer cached.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The project's own dependencies, then those of each extra. Raises KeyError for an extra that is not there."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(__file__).with_name("pyproject.toml"), sys.argv[1:])))
