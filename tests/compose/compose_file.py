"""Compose files read the way compose does: variables filled in, then each override merged over what came before.

Only what these files use: `${NAME:-default}`, maps merged key by key, lists joined, and single values, commands and
health tests replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML has no types of its own

COMPOSE_DIR = Path(__file__).parents[2] / "compose"
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_]+):-(?P<default>[^{}]*)\}")
_REPLACED_LISTS = frozenset({"command", "test"})


def read_stack(*names: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The services of a base file and its overrides, by name."""
    merged: dict[str, Any] = {}
    for name in names:
        document = yaml.safe_load((COMPOSE_DIR / name).read_text(encoding="utf-8"))
        merged = _merge(merged, _filled(document, variables or {}))
    services: dict[str, Any] = merged["services"]
    return services


def variable_defaults(*names: str) -> dict[str, set[str]]:
    """Defaults of every variable that the files read, by name: one, unless the files disagree."""
    found: dict[str, set[str]] = {}
    for name in names:
        text = (COMPOSE_DIR / name).read_text(encoding="utf-8")
        for match in _VARIABLE.finditer(text):
            found.setdefault(match["name"], set()).add(match["default"])
    return found


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    match value:
        case dict():
            return {key: _filled(each, variables) for key, each in value.items()}
        case list():
            return [_filled(each, variables) for each in value]
        case str():
            filled = _VARIABLE.sub(lambda found: variables.get(found["name"]) or found["default"], value)
            assert "$" not in filled, f"a form of variable that docker-compose 1.29 may not know: {value}"
            return filled
    return value


def _merge(base: Any, override: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(override, dict):
        extra = {name: value for name, value in override.items() if name not in base}
        return {name: _merge(value, override.get(name, value), name) for name, value in base.items()} | extra
    if isinstance(base, list) and isinstance(override, list) and key not in _REPLACED_LISTS:
        return base + [each for each in override if each not in base]
    return override
