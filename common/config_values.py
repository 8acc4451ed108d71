"""The values of settings: what they allow, and how their texts from flags and environment are read."""

from __future__ import annotations

import enum
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, Literal

from common.core.kv_layout import DTYPE_BYTES
from common.errors import ConfigError

AUTO: Literal["auto"] = "auto"
TokensOrAuto = int | Literal["auto"]
"""A number of tokens, or leave to set it to the service itself."""

DTYPE_CHOICES = (AUTO, *DTYPE_BYTES)
"""What weights and K/V may be computed in; auto: see `common.core.kv_layout.default_dtype`."""

KV_TRANSPORT_CHOICES = ("tcp", "ucx", AUTO)
"""What may move K/V between workers; auto: ucx where it is installed, else tcp."""

LOG_LEVEL_CHOICES = ("debug", "info", "warning", "error")
"""Least severe level that a log may hold."""

Form = Literal["address", "addresses", "registry", "redis", "weights"]
"""What a text may have to look like; `_CHECKS` has the rules."""

MAX_TENANT_WEIGHT = 1000
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_REDIS_FORM = "redis://host:port/db (db: a number, 0 if left out)"
_REDIS_URL = re.compile(r"redis://(?P<address>[^/?#@\s]+)(/[0-9]{0,5})?")


def about(
    help_text: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
    form: Form | None = None,
) -> dict[str, Any]:
    """Metadata of a setting: its command-line help and its allowed values."""
    return {
        "help": help_text,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "choices": choices,
        "form": form,
    }


def choices_of(setting: Field[Any], hint: Any) -> tuple[str, ...]:
    """The only texts that the setting allows; empty when it is not a choice."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(str(member.value) for member in hint)
    return tuple(setting.metadata["choices"] or ())


def parse_value(setting: Field[Any], hint: Any, text: str, source: str) -> Any:
    """The value that `text` from the option `source` stands for; raises ConfigError naming the option."""
    allowed = choices_of(setting, hint)
    if allowed and text not in allowed:
        raise ConfigError(f"{source}: must be one of {', '.join(allowed)}, not {text!r}")
    if hint == TokensOrAuto:
        return AUTO if text == AUTO else _number(setting, int, text, source, kind="a whole number or auto")
    if isinstance(hint, types.UnionType):  # Path | None
        return Path(text) if text else None
    if hint in (int, float):
        return _number(setting, hint, text, source)
    if hint is bool:
        return _boolean(text, source)
    if (form := setting.metadata["form"]) is not None:
        _CHECKS[form](text, source)
    if hint is Path and not text:
        raise ConfigError(f"{source}: must be a path, not empty")
    return hint(text)


def _number(setting: Field[Any], hint: type[int] | type[float], text: str, source: str, *, kind: str = "") -> float:
    kind = kind or ("a whole number" if hint is int else "a number")
    try:
        value = hint(text)
    except ValueError:
        raise ConfigError(f"{source}: must be {kind}, not {text!r}") from None
    minimum, maximum, above = (setting.metadata[key] for key in ("minimum", "maximum", "above"))
    if not math.isfinite(value):
        raise ConfigError(f"{source}: must be a finite number, not {text!r}")
    if minimum is not None and value < minimum:
        raise ConfigError(f"{source}: must be {minimum} or more, not {text}")
    if maximum is not None and value > maximum:
        raise ConfigError(f"{source}: must be {maximum} or less, not {text}")
    if above is not None and value <= above:
        raise ConfigError(f"{source}: must be above {above}, not {text}")
    return value


def _boolean(text: str, source: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE + _FALSE:
        raise ConfigError(f"{source}: must be one of {', '.join(_TRUE + _FALSE)}, not {text!r}")
    return lowered in _TRUE


def _check_address(text: str, source: str) -> None:
    if text and not is_address(text):
        raise ConfigError(f"{source}: must be host:port, not {text!r}")


def is_address(text: str) -> bool:
    """Whether `text` is host:port, with a port that something can listen on."""
    host, separator, port = text.rpartition(":")
    return bool(separator and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536)


def parse_addresses(text: str, source: str = "--scheduler-address") -> tuple[str, ...]:
    """The members of host:port,host:port,... ; raises ConfigError naming `source` unless each is there once."""
    addresses = tuple(part.strip() for part in text.split(","))
    wrong = [address for address in addresses if not is_address(address)]
    if wrong or len(set(addresses)) < len(addresses):
        raise ConfigError(f"{source}: must be host:port, or several different ones with commas, not {text!r}")
    return addresses


def check_registry(text: str, source: str) -> None:
    """Raise ConfigError naming `source` unless `text` says where a registry is kept: memory, or a Redis."""
    if text != "memory" and not _is_redis(text):
        raise ConfigError(f"{source}: must be memory or {_REDIS_FORM}")


def _check_redis(text: str, source: str) -> None:
    if text and not _is_redis(text):
        raise ConfigError(f"{source}: must be {_REDIS_FORM}")


def _is_redis(text: str) -> bool:
    # Messages do not repeat the value: a URL that somebody put a password into belongs in no log.
    found = _REDIS_URL.fullmatch(text)
    return bool(found and is_address(found["address"]))


def parse_tenant_weights(text: str, source: str = "--tenant-weights") -> dict[str, int]:
    """Shares by tenant from `name=weight,...` ("" : none); raises ConfigError unless weights are whole, 1 to 1000."""
    weights: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, separator, weight = part.rpartition("=")
        if not separator or not (weight.isascii() and weight.isdecimal() and 1 <= int(weight) <= MAX_TENANT_WEIGHT):
            raise ConfigError(f"{source}: must be name=weight,... with weights 1 to {MAX_TENANT_WEIGHT}, not {text!r}")
        weights[name.strip()] = int(weight)
    return weights


def tokens_or(value: TokensOrAuto, start_tokens: int) -> int:
    """A fixed number of tokens, or where a service that sets it itself starts."""
    return start_tokens if value == AUTO else value


_CHECKS: Mapping[Form, Callable[[str, str], object]] = {
    "address": _check_address,
    "addresses": parse_addresses,
    "registry": check_registry,
    "redis": _check_redis,
    "weights": parse_tenant_weights,
}
"""Each gets a text and the option it is from, and raises ConfigError; address and redis may be left empty."""
