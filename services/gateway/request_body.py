"""What a request asks for, as a fingerprint: an id that comes again must come with the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from sangam.v1 import inference_pb2

_OF_THE_CALL = frozenset({"request_id", "from_position", "committed_token_ids", "include_revealed", "detach_grace_ms"})
"""Fields that say how a call watches, not what is generated; every other one counts, also those yet to come."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RequestBody:
    """Digests of the fields that say what to generate, by name (of the oneof, where a field is in one)."""

    digests: dict[str, bytes]

    @classmethod
    def of(cls, request: inference_pb2.GenerateRequest) -> RequestBody:
        """The fingerprint of `request`; fields at their default are left out."""
        digests: dict[str, bytes] = {}
        for field, value in request.ListFields():
            if field.name not in _OF_THE_CALL:
                name = field.containing_oneof.name if field.containing_oneof else field.name
                digests[name] = _digest(field.name, value)
        return cls(digests)

    def difference(self, other: RequestBody) -> str | None:
        """The first field, by name, in which `other` differs; None when both ask for the same."""
        names = sorted(self.digests.keys() | other.digests.keys())
        return next((name for name in names if self.digests.get(name) != other.digests.get(name)), None)


def _digest(name: str, value: Any) -> bytes:
    hashed = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES)
    for part in _parts(value):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()


def _parts(value: Any) -> Iterable[bytes]:
    """A field's value as bytes; of a repeated field, item by item."""
    if isinstance(value, Message):
        return [value.SerializeToString(deterministic=True)]
    if isinstance(value, str):
        return [value.encode()]
    if isinstance(value, bool | int | float | bytes):
        return [repr(value).encode()]
    return [part for item in value for part in _parts(item)]
