"""Fields of the cores' own configurations as options, found by looking: a new policy field is an option at once."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from common.core.placement import COLOCATED_POLICIES, DECODE_POLICIES, PREFILL_POLICIES
from common.core.scheduler_config import SchedulerConfig
from common.core.worker_config import WorkerCoreConfig
from common.errors import ConfigError
from common.sim.settings import AUTO, Settings

C = TypeVar("C", SchedulerConfig, WorkerCoreConfig)

CHOICES: Mapping[str, Mapping[str, object]] = {
    "prefill_policy": PREFILL_POLICIES,
    "decode_policy": DECODE_POLICIES,
    "colocated_policy": COLOCATED_POLICIES,
}
ADAPTIVE = {"token_budget_tokens": "token_budget_adapts", "overload_threshold_tokens": "overload_threshold_adapts"}
"""Fields whose option takes `auto`, and the field that says so."""

_RANGES: Mapping[str, Mapping[str, float]] = {
    "topology-alpha": {"least": 0.0, "most": 1.0},
    "min-kept-share": {"least": 0.0, "most": 1.0},
    "kv-lease": {"above": 0.0},
    "max-queue-wait": {"above": 0.0},
}
"""Numbers with other limits than 0 or more; the services' own (`common.config`), which a test compares."""

_NAMES = {"overflow_enabled": "overflow"}
_ELSEWHERE = {"mode", "role", "pages_total", "eos_token_id", *ADAPTIVE.values()}
_UNITS = ("_tokens", "_s")


def option_name(field: str) -> str:
    """The option of a field: its unit is left out, as everywhere on the command line."""
    name = _NAMES.get(field, field)
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", "-")


def core_options() -> dict[str, str]:
    """Option name and help of every field of both configurations that has a plain value."""
    return {
        option_name(field.name): _help(field.name, field.default)
        for kind in (SchedulerConfig, WorkerCoreConfig)
        for field in fields(kind)
        if field.name not in _ELSEWHERE and field.default_factory is MISSING
    }


def apply_options(config: C, settings: Settings) -> C:
    """`config` with what the settings say of its fields. Raises ConfigError naming the option."""
    names = {field.name for field in fields(config)}
    changes: dict[str, Any] = {}
    for name in sorted(names - _ELSEWHERE):
        option = option_name(name)
        if option not in settings:
            continue
        if name in ADAPTIVE and settings.is_auto(option):
            if ADAPTIVE[name] not in names:
                raise ConfigError(f"--{option}: {AUTO} is not available here; allowed: a whole number of at least 1")
            changes[ADAPTIVE[name]] = True
        else:
            changes[name] = _value(name, getattr(config, name), settings)
    return replace(config, **changes)


def _value(field: str, default: object, settings: Settings) -> object:
    option = option_name(field)
    if field in CHOICES:
        return settings.choice(option, str(default), CHOICES[field])
    match default:
        case enum.Enum():
            return settings.member(option, default)
        case bool():
            return settings.switch(option, default)
        case int():
            return settings.whole(option, default, least=0 if default == 0 else 1)
        case float():
            return settings.number(option, default, **_RANGES.get(option, {"least": 0.0}))
    raise ConfigError(f"--{option}: cannot be set here")


def _help(field: str, default: object) -> str:
    unit = next((unit.strip("_") for unit in _UNITS if field.endswith(unit)), "")
    names = list(CHOICES.get(field, ()))
    if isinstance(default, enum.Enum):
        names = [member.value for member in type(default)]
    if isinstance(default, bool):
        names = ["on", "off"]
    choices = f": {'|'.join(names)}" if names else ""
    auto = f", or {AUTO}" if field in ADAPTIVE else ""
    return f"{field.removesuffix('_' + unit).replace('_', ' ')}{', in ' + unit if unit else ''}{choices}{auto}"
