"""The closed sets: one table each, read in both directions. An unspecified or unknown value is refused."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from common.core.ids import Role, ServingMode
from common.core.params import CacheMode
from common.core.work import FinishReason
from common.errors import InvalidRequest
from common.prompt import PromptFormat
from sangam.v1 import inference_pb2, types_pb2

EnumT = TypeVar("EnumT", bound=enum.Enum)

_CACHE_MODES = {
    CacheMode.DUAL: types_pb2.CACHE_MODE_DUAL,
    CacheMode.PREFIX: types_pb2.CACHE_MODE_PREFIX,
    CacheMode.NONE: types_pb2.CACHE_MODE_NONE,
}
_ROLES = {Role.PREFILL: types_pb2.WORKER_ROLE_PREFILL, Role.DECODE: types_pb2.WORKER_ROLE_DECODE}
_SERVING_MODES = {
    ServingMode.COLOCATED: types_pb2.SERVING_MODE_COLOCATED,
    ServingMode.DISAGGREGATED: types_pb2.SERVING_MODE_DISAGGREGATED,
    ServingMode.HYBRID: types_pb2.SERVING_MODE_HYBRID,
}
_FINISH_REASONS = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}

_PROMPT_FORMATS = {
    PromptFormat.AUTO: inference_pb2.PROMPT_FORMAT_UNSPECIFIED,
    PromptFormat.PLAIN: inference_pb2.PROMPT_FORMAT_PLAIN,
    PromptFormat.CHAT: inference_pb2.PROMPT_FORMAT_CHAT,
}


def cache_mode_to_proto(mode: CacheMode) -> types_pb2.CacheMode:
    """The wire's value."""
    return _CACHE_MODES[mode]


def cache_mode_from_proto(value: types_pb2.CacheMode, path: str = "cache_mode") -> CacheMode:
    """The core's value; raises InvalidRequest naming `path`."""
    return _member(_CACHE_MODES, value, path)


def role_to_proto(role: Role) -> types_pb2.WorkerRole:
    """The wire's value."""
    return _ROLES[role]


def role_from_proto(value: types_pb2.WorkerRole, path: str = "role") -> Role:
    """The core's value; raises InvalidRequest naming `path`."""
    return _member(_ROLES, value, path)


def serving_mode_to_proto(mode: ServingMode) -> types_pb2.ServingMode:
    """The wire's value."""
    return _SERVING_MODES[mode]


def serving_mode_from_proto(value: types_pb2.ServingMode, path: str = "mode") -> ServingMode:
    """The core's value; raises InvalidRequest naming `path`."""
    return _member(_SERVING_MODES, value, path)


def finish_reason_to_proto(reason: FinishReason | None) -> types_pb2.FinishReason:
    """The wire's value; None (the request goes on) is UNSPECIFIED."""
    return types_pb2.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH_REASONS[reason]


def finish_reason_from_proto(value: types_pb2.FinishReason, path: str = "finish_reason") -> FinishReason | None:
    """The core's value, None for UNSPECIFIED; raises InvalidRequest naming `path`."""
    return None if value == types_pb2.FINISH_REASON_UNSPECIFIED else _member(_FINISH_REASONS, value, path)


def prompt_format_to_proto(prompt_format: PromptFormat) -> inference_pb2.PromptFormat:
    """The wire's value; AUTO is UNSPECIFIED."""
    return _PROMPT_FORMATS[prompt_format]


def prompt_format_from_proto(value: inference_pb2.PromptFormat, path: str = "prompt_format") -> PromptFormat:
    """The gateway's value, AUTO for UNSPECIFIED; raises InvalidRequest naming `path`."""
    return _member(_PROMPT_FORMATS, value, path)


def _member(table: Mapping[EnumT, int], value: int, path: str) -> EnumT:
    for member, number in table.items():
        if number == value:
            return member
    allowed = ", ".join(member.name for member in table)
    raise InvalidRequest(path, f"must be one of {allowed}, not {value}")
