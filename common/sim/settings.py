"""Option values as the user wrote them, read with errors that name the option and what it allows."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from common.errors import ConfigError

E = TypeVar("E", bound=enum.Enum)
_MAX_SHOWN_CHARACTERS = 80
AUTO = "auto"


class Settings:
    """Values by option name (without dashes); absent or None is "not given". Every reader may raise ConfigError."""

    def __init__(self, values: Mapping[str, str | None]) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """The value itself."""
        return self._values.get(name, default)

    @property
    def given(self) -> Mapping[str, str]:
        """What was given."""
        return dict(self._values)

    def replaced(self, values: Mapping[str, str]) -> Settings:
        """A copy with other values for some options."""
        return Settings({**self._values, **values})

    def whole(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """A whole number of at least `least` and, unless that is None, at most `most`."""
        value = self._values.get(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            bound = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise ConfigError(f"--{name}: {_shown(value)} is not allowed; allowed: a whole number {bound}")
        return number

    def number(
        self, name: str, default: float, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
    ) -> float:
        """A finite number, above `above`, at least `least` and at most `most`."""
        value = self._values.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > above and least <= number <= most):
            bound = f"above {above:g}" if above >= least else f"of at least {least:g}"
            bound += f" and at most {most:g}" if most < math.inf else ""
            raise ConfigError(f"--{name}: {_shown(value)} is not allowed; allowed: a number {bound}")
        return number

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        """One of the names in `allowed`."""
        names = list(allowed)
        value = self._values.get(name, default)
        if value not in names:
            raise ConfigError(f"--{name}: {_shown(value)} is not known; allowed: {', '.join(names)}")
        return value

    def member(self, name: str, default: E) -> E:
        """A member of the default's enumeration, by its value."""
        kind = type(default)
        return kind(self.choice(name, default.value, [member.value for member in kind]))

    def switch(self, name: str, default: bool) -> bool:
        """on or off."""
        return self.choice(name, "on" if default else "off", ("on", "off")) == "on"

    def is_auto(self, name: str) -> bool:
        """Whether the value is the word auto."""
        return self._values.get(name) == AUTO


def _shown(value: str) -> str:
    """The value as a message quotes it: a long one is cut, so that the allowed values can be read."""
    return repr(value if len(value) <= _MAX_SHOWN_CHARACTERS else value[:_MAX_SHOWN_CHARACTERS] + "...")
