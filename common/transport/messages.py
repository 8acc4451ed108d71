"""The small control messages of a KV read, and their payloads on the wire.

A reader sends `ReadRequest`; the owner answers `Accept`, then data, then `Trailer`, or `Refusal` (also in between);
the reader ends with an acknowledgement. Over UCX both sides first introduce themselves with `UcxPeer`, and the data is
replaced by a `Delivered` for each piece that UCX has moved. A reader that takes the bytes out of the owner's memory
begins with `DirectHello`, the owner answers `DirectOffer` or `Refusal`, and the data is replaced by `Lent`s; one that
does so by UCX says `TakesMemory` after the introductions. A refusal names the request that it answers: on a connection
that is kept, the one of the last read may cross the next request. Payloads are little-endian structs followed by UTF-8
strings with a 16-bit length: decoding looks at nothing but the bytes given and raises `MalformedFrame` on any surprise.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Self

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.errors import InvalidRequest, Reason, WireError
from common.transport.base import MAX_TRAILER_BYTES, KvReadRequest
from common.transport.memory_proof import NONCE_BYTES, PROOF_BYTES
from common.transport.memory_run import Spans
from common.transport.process_memory import Machine, Standing

MAX_CONTROL_BYTES = MAX_TRAILER_BYTES + 8
"""Longest payload of a control frame; nothing larger is ever allocated on a peer's word."""

_REQUEST = struct.Struct("<QIIQId?")
_REFUSAL = struct.Struct("<Q")
_ACCEPT = struct.Struct("<IQ")
_STRING = struct.Struct("<H")
_PEER = struct.Struct("<QQIIIII")
_DELIVERED = struct.Struct("<QI")
_SUM = struct.Struct("<I")
_TRAILER = struct.Struct("<d")
_OFFER = struct.Struct("<IQ")
_LENT = struct.Struct("<QQQ")
_MAX_MESSAGE_BYTES = 1024

MAX_LENT_BYTES = 2 << 20
"""Most bytes that one `Lent` tells of: what one turn of the event loop sums, or copies and sums (0.7 ms)."""


class MalformedFrame(WireError):
    """The peer's bytes are not a frame that may come now: damaged, foreign or out of order."""

    def __init__(self, problem: str) -> None:
        super().__init__(Reason.KV_CHECKSUM, f"malformed KV frame: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """First frame of a read. The reader gives up `timeout_s` seconds after it asked, so the owner may too.

    `number` is one that no other request on the connection has, above 0.
    """

    number: int
    read: KvReadRequest
    timeout_s: float

    def encode(self) -> bytes:
        """Payload bytes; raises `InvalidRequest` when the request id is too long for a control frame."""
        read = self.read
        head = _REQUEST.pack(
            self.number,
            read.attempt.block,
            read.attempt.attempt,
            read.owner.incarnation,
            read.pages,
            self.timeout_s,
            read.early,
        )
        texts = (read.attempt.request_id, read.owner.worker_id, read.layout_fingerprint)
        payload = head + b"".join(map(_pack_string, texts))
        if len(payload) > MAX_CONTROL_BYTES:
            raise InvalidRequest("request_id", "too long for the KV data plane")
        return payload

    @classmethod
    def decode(cls, payload: bytes) -> ReadRequest:
        """Inverse of `encode`; raises `MalformedFrame`."""
        number, block, attempt, incarnation, pages, timeout_s, early = _unpack(_REQUEST, payload)
        request_id, worker_id, fingerprint = _unpack_strings(payload[_REQUEST.size :], 3)
        if not (math.isfinite(timeout_s) and timeout_s > 0.0):
            raise MalformedFrame("timeout out of range")
        return cls(
            number=number,
            read=KvReadRequest(
                attempt=BlockAttempt(RequestId(request_id), block, attempt),
                owner=WorkerLife(WorkerId(worker_id), incarnation),
                layout_fingerprint=fingerprint,
                pages=pages,
                early=bool(early),
            ),
            timeout_s=timeout_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """The owner will send `layers` layers of `layer_bytes` bytes each."""

    layers: int
    layer_bytes: int

    def encode(self) -> bytes:
        """Payload bytes."""
        return _ACCEPT.pack(self.layers, self.layer_bytes)

    @classmethod
    def decode(cls, payload: bytes) -> Accept:
        """Inverse of `encode`; raises `MalformedFrame`."""
        layers, layer_bytes = _unpack(_ACCEPT, payload)
        if len(payload) != _ACCEPT.size:
            raise MalformedFrame("trailing bytes")
        return cls(layers=layers, layer_bytes=layer_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The owner ends the read that request `number` began, or (0) refuses what the connection began with; for this
    reason."""

    error: WireError
    number: int

    def encode(self) -> bytes:
        """Payload bytes; a long message is cut, metadata does not travel."""
        message = self.error.message.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
        return _REFUSAL.pack(self.number) + _pack_string(self.error.reason.value) + _pack_string(message)

    @classmethod
    def decode(cls, payload: bytes) -> Refusal:
        """Inverse of `encode`; a reason this version does not know reads as INTERNAL. Raises `MalformedFrame`."""
        (number,) = _unpack(_REFUSAL, payload)
        name, message = _unpack_strings(payload[_REFUSAL.size :], 2)
        known = {reason.value: reason for reason in Reason}
        return cls(error=WireError(known.get(name, Reason.INTERNAL), message), number=number)


class _Word:
    """A message that is said by its kind alone."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Payload bytes: none."""
        return b""

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Inverse of `encode`; raises `MalformedFrame`."""
        if payload:
            raise MalformedFrame("trailing bytes")
        return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(_Word):
    """The reader holds every byte and all checksums were right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxPeer:
    """How to reach the sender's UCX worker. `first_tag` numbers the pieces of this connection (the reader draws it).

    A reader adds its `standing` and the `networks_address` for an owner that must not share memory with it, and a
    `nonce`; an owner whose memory can be read the `memory_key` that this takes, and the `proof_address` where it holds
    its answer to the nonce. UCX aborts the process over an address of another format, so `ucx_version` ("1.21") goes
    first, and nothing of this is believed without its `seal` (`ucx_seal`).
    """

    ucx_version: str
    worker_address: bytes
    first_tag: int
    networks_address: bytes = b""
    standing: Standing | None = None
    nonce: bytes = b""
    memory_key: bytes = b""
    proof_address: int = 0
    seal: bytes = b""

    def encode(self) -> bytes:
        """Payload bytes."""
        blobs = (self.worker_address, self.networks_address, self.memory_key, self.nonce, self.seal)
        head = _PEER.pack(self.first_tag, self.proof_address, *map(len, blobs))
        standing = ("", "") if self.standing is None else (self.standing.segments, self.standing.rights)
        return head + b"".join(blobs) + b"".join(map(_pack_string, (self.ucx_version, *standing)))

    @classmethod
    def decode(cls, payload: bytes) -> UcxPeer:
        """Inverse of `encode`; raises `MalformedFrame`."""
        first_tag, proof_address, *lengths = _unpack(_PEER, payload)
        blobs, end = [], _PEER.size
        for length in lengths:
            blobs.append(payload[end : end + length])
            end += length
        worker_address, networks_address, memory_key, nonce, seal = blobs
        if not worker_address or end > len(payload):
            raise MalformedFrame("no UCX worker address")
        if len(nonce) not in (0, NONCE_BYTES) or proof_address + PROOF_BYTES > 1 << 64:
            raise MalformedFrame("no challenge, and no answer to one")
        ucx_version, *standing = _unpack_strings(payload[end:], 3)
        return cls(
            ucx_version=ucx_version,
            worker_address=worker_address,
            first_tag=first_tag,
            networks_address=networks_address,
            standing=Standing(*standing) if any(standing) else None,
            nonce=nonce,
            memory_key=memory_key,
            proof_address=proof_address,
            seal=seal,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TakesMemory(_Word):
    """The reader takes the bytes of this connection's reads out of the owner's memory itself, by UCX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Pieces `first` (counted from 0 over the whole read) and following are in the reader's memory; their checksums."""

    first: int
    payload_sums: tuple[int, ...]

    def encode(self) -> bytes:
        """Payload bytes."""
        head = _DELIVERED.pack(self.first, len(self.payload_sums))
        return head + b"".join(map(_SUM.pack, self.payload_sums))

    @classmethod
    def decode(cls, payload: bytes) -> Delivered:
        """Inverse of `encode`; raises `MalformedFrame`."""
        first, count = _unpack(_DELIVERED, payload)
        sums = payload[_DELIVERED.size :]
        if len(sums) != count * _SUM.size:
            raise MalformedFrame(f"{len(sums)} bytes for {count} checksums")
        return cls(first=first, payload_sums=tuple(value for (value,) in _SUM.iter_unpack(sums)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """Ends the data: bytes of the lease's own making, and how many seconds ago the last layer was computed."""

    data: bytes
    computed_ago_s: float

    def encode(self) -> bytes:
        """Payload bytes."""
        assert len(self.data) <= MAX_TRAILER_BYTES, f"a trailer of {len(self.data)} bytes"
        return _TRAILER.pack(self.computed_ago_s) + self.data

    @classmethod
    def decode(cls, payload: bytes) -> Trailer:
        """Inverse of `encode`; raises `MalformedFrame`."""
        (computed_ago_s,) = _unpack(_TRAILER, payload)
        if not (math.isfinite(computed_ago_s) and computed_ago_s >= 0.0):
            raise MalformedFrame("time since the end of the prefill out of range")
        return cls(data=payload[_TRAILER.size :], computed_ago_s=computed_ago_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectHello:
    """A reader would take the bytes from the owner's memory, should that be within reach from its `machine`, and should
    the owner hold its answer to `nonce` there."""

    machine: Machine
    nonce: bytes

    def encode(self) -> bytes:
        """Payload bytes."""
        return self.nonce + _pack_machine(self.machine)

    @classmethod
    def decode(cls, payload: bytes) -> DirectHello:
        """Inverse of `encode`; raises `MalformedFrame`."""
        nonce = payload[:NONCE_BYTES]
        if len(nonce) != NONCE_BYTES:
            raise MalformedFrame("no nonce")
        return cls(machine=_unpack_machine(payload[NONCE_BYTES:]), nonce=nonce)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectOffer:
    """The owner is process `pid` of `machine`, and holds its answer to the reader's nonce at `proof_address`."""

    machine: Machine
    pid: int
    proof_address: int

    def encode(self) -> bytes:
        """Payload bytes."""
        return _OFFER.pack(self.pid, self.proof_address) + _pack_machine(self.machine)

    @classmethod
    def decode(cls, payload: bytes) -> DirectOffer:
        """Inverse of `encode`; raises `MalformedFrame`."""
        pid, proof_address = _unpack(_OFFER, payload)
        if not 0 < pid < 1 << 31 or proof_address + PROOF_BYTES > 1 << 64:
            raise MalformedFrame("no process to read")
        return cls(machine=_unpack_machine(payload[_OFFER.size :]), pid=pid, proof_address=proof_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Bytes [offset, offset + spans.size_bytes) of the read, over all layers, lie at `spans` of the owner's memory, and
    have that checksum (`wide_checksum`): at most `MAX_LENT_BYTES`."""

    offset_bytes: int
    payload_sum: int
    spans: Spans

    def encode(self) -> bytes:
        """Payload bytes."""
        head = _LENT.pack(self.offset_bytes, self.spans.size_bytes, self.payload_sum)
        return head + self.spans.pack()

    @classmethod
    def decode(cls, payload: bytes) -> Lent:
        """Inverse of `encode`; raises `MalformedFrame`."""
        offset_bytes, length_bytes, payload_sum = _unpack(_LENT, payload)
        if length_bytes > MAX_LENT_BYTES:
            raise MalformedFrame(f"{length_bytes} bytes lent at once")
        try:
            spans = Spans.unpack(payload[_LENT.size :], length_bytes)
        except ValueError as error:
            raise MalformedFrame(str(error)) from None
        return cls(offset_bytes=offset_bytes, payload_sum=payload_sum, spans=spans)


ControlMessage = (
    ReadRequest
    | Accept
    | Refusal
    | Ack
    | UcxPeer
    | TakesMemory
    | Delivered
    | Trailer
    | DirectHello
    | DirectOffer
    | Lent
)


def _pack_machine(machine: Machine) -> bytes:
    return _pack_string(machine.boot_id) + _pack_string(machine.pid_namespace)


def _unpack_machine(payload: bytes) -> Machine:
    boot_id, pid_namespace = _unpack_strings(payload, 2)
    return Machine(boot_id=boot_id, pid_namespace=pid_namespace)


def _pack_string(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_CONTROL_BYTES:
        raise InvalidRequest("request_id", "too long for the KV data plane")
    return _STRING.pack(len(data)) + data


def _unpack(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise MalformedFrame("payload too short")
    return layout.unpack_from(payload)


def _unpack_strings(payload: bytes, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        (length,) = _unpack(_STRING, payload)
        data, payload = payload[_STRING.size : _STRING.size + length], payload[_STRING.size + length :]
        if len(data) != length:
            raise MalformedFrame("string longer than its frame")
        try:
            texts.append(data.decode())
        except UnicodeDecodeError:
            raise MalformedFrame("text is not UTF-8") from None
    if payload:
        raise MalformedFrame("trailing bytes")
    return texts
