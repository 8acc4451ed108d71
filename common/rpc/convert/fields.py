"""Checks that the conversions share. `path` names the field in the message, for the caller's eyes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from google.protobuf.message import Message

from common.errors import InvalidRequest

_UINT32_MAX = 2**32 - 1


def join(path: str, name: str) -> str:
    """`name` below `path` ("" is the message itself)."""
    return f"{path}.{name}" if path else name


def require(message: Message, name: str, path: str) -> str:
    """The path of sub-message `name`; raises InvalidRequest when it is absent."""
    full = join(path, name)
    if not message.HasField(name):
        raise InvalidRequest(full, "is missing")
    return full


def non_empty(text: str, path: str) -> str:
    """`text`; raises InvalidRequest when it is empty."""
    if not text:
        raise InvalidRequest(path, "must not be empty")
    return text


def positive(value: int, path: str) -> int:
    """`value`; raises InvalidRequest unless it is above 0."""
    if value <= 0:
        raise InvalidRequest(path, f"must be above 0, not {value}")
    return value


def duration(value_s: float, path: str) -> float:
    """`value_s` in seconds; raises InvalidRequest unless it is finite and not negative."""
    if not (math.isfinite(value_s) and value_s >= 0):
        raise InvalidRequest(path, f"must be a finite number of seconds, 0 or above, not {value_s}")
    return value_s


def same_length(expected: int, values: Sequence[object], path: str) -> None:
    """Raise InvalidRequest unless `values` holds `expected` entries."""
    if len(values) != expected:
        raise InvalidRequest(path, f"must hold {expected} entries, not {len(values)}")


def milliseconds(value_s: float) -> int:
    """Seconds as the wire's uint32 milliseconds, clamped to what that can hold."""
    return min(max(0, round(value_s * 1000)), _UINT32_MAX)
