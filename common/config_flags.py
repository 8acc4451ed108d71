"""How a setting is given: its flag, its variable, its help, and the flags by which one program hands it to another."""

from __future__ import annotations

import enum
from dataclasses import MISSING, Field, fields
from typing import Any

from common.config_values import choices_of

ENV_PREFIX = "SANGAM_"


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + name.upper()


def argv_of(cls: type[Any], **settings: Any) -> tuple[str, ...]:
    """Flags from which `common.config.load_config` reads these settings of `cls`, in the order of its fields.

    A value may be a text already; None is the empty one. What is left out, the service finds for itself.
    """
    names = [setting.name for setting in fields(cls)]
    assert settings.keys() <= set(names), f"{cls.__name__} has no {', '.join(settings.keys() - set(names))}"
    argv: list[str] = []
    for name in names:
        if name not in settings:
            continue
        value = settings[name]
        if isinstance(value, bool):
            argv.append(flag_of(name) if value else "--no-" + flag_of(name)[2:])
        else:
            text = value.value if isinstance(value, enum.Enum) else "" if value is None else str(value)
            argv.append(f"{flag_of(name)}={text}")
    return tuple(argv)


def help_of(setting: Field[Any], hint: Any) -> str:
    """Command-line help of a setting: what it is, what it allows, its default and its variable."""
    notes = []
    if allowed := choices_of(setting, hint):
        notes.append("one of " + ", ".join(allowed))
    if setting.default is MISSING:
        notes.append("required")
    elif setting.default not in (None, ""):
        default = setting.default.value if isinstance(setting.default, enum.Enum) else setting.default
        notes.append(f"default {default}")
    notes.append(f"env {env_of(setting.name)}")
    return f"{setting.metadata['help']} [{'; '.join(notes)}]".replace("%", "%%")
