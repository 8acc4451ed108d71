"""Frozen dataclasses to JSON and back, for the events and settings of the cores.

A dataclass is an object that names its class under "_"; enums are their values, tuples are lists. Reading is guided by
type hints alone: no name in a file can lead to a class that the hints do not allow.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, NewType

from common.errors import SangamError

CLASS_KEY = "_"


class Unreadable(SangamError):
    """A value that is not what its place in a story calls for; the text names the place."""


def encode(value: Any) -> Any:
    """`value` as JSON holds it. Dataclasses, enums, tuples, lists, mappings with text keys, and JSON's own scalars."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    cls: type = type(value)
    assert dataclasses.is_dataclass(cls), f"a story cannot hold {cls}"
    return {CLASS_KEY: cls.__name__, **{name: encode(getattr(value, name)) for name in _field_names(cls)}}


def decode(hint: Any, data: Any, where: str) -> Any:
    """The value of type `hint` that `data` stands for. Raises `Unreadable`, which names the place from `where` on."""
    if isinstance(hint, NewType):
        return decode(hint.__supertype__, data, where)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(hint), data, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(hint), data, where)
    if origin is not None and issubclass(origin, Mapping):
        values = typing.get_args(hint)[1]
        _expect(isinstance(data, dict), "an object", data, where)
        return {key: decode(values, item, f"{where}.{key}") for key, item in data.items()}
    if _is_class(hint):
        return _decode_dataclass(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        allowed = [member.value for member in hint]
        _expect(data in allowed, f"one of {allowed}", data, where)
        return hint(data)
    return _decode_scalar(hint, data, where)


def _decode_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _expect(type(data) is hint, f"a value of type {hint.__name__}", data, where)
    return data


def _decode_tuple(hints: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, list), "a list", data, where)
    if len(hints) == 2 and hints[1] is Ellipsis:
        return tuple(decode(hints[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    _expect(len(data) == len(hints), f"a list of {len(hints)}", data, where)
    pairs = zip(hints, data, strict=True)
    return tuple(decode(hint, item, f"{where}[{index}]") for index, (hint, item) in enumerate(pairs))


def _decode_union(hints: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in hints:
        return None
    named: dict[str, type] = {hint.__name__: hint for hint in hints if _is_class(hint)}
    if named and isinstance(data, dict):
        name = str(data.get(CLASS_KEY))
        _expect(name in named, f"one of {sorted(named)}", name, f"{where}.{CLASS_KEY}")
        return _decode_dataclass(named[name], data, where)
    rest = [hint for hint in hints if hint is not type(None) and not _is_class(hint)]
    _expect(len(rest) == 1, f"one of {sorted(named)}", data, where)
    return decode(rest[0], data, where)


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict) and data.get(CLASS_KEY) == cls.__name__, f"a {cls.__name__}", data, where)
    hints = _hints(cls)
    unknown = sorted(set(data) - set(hints) - {CLASS_KEY})
    if unknown:
        raise Unreadable(f"{where}: {cls.__name__} has no {unknown[0]}")
    values = {name: decode(hints[name], data[name], f"{where}.{name}") for name in hints if name in data}
    try:
        return cls(**values)
    except TypeError:
        missing = sorted(set(hints) - set(values))
        raise Unreadable(f"{where}: {cls.__name__} needs {', '.join(missing)}") from None


def _expect(holds: bool, wanted: str, data: Any, where: str) -> None:
    if not holds:
        text = repr(data)
        raise Unreadable(f"{where}: must be {wanted}, not {text if len(text) <= 60 else text[:57] + '...'}")


def _is_class(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {name: hints[name] for name in _field_names(cls)}
