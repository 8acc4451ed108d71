"""Wire format of the byte-stream backends, without I/O: frames out as bytes, frames in through `FrameDecoder`.

Every frame is a 36-byte little-endian header and `length` payload bytes:

    magic "SGKV" | version u8 | kind u8 | zero u16 | layer u32 | offset u64 | length u64 | payload sum | header crc32

`layer` and `offset` are zero but for DATA, whose payload is bytes [offset, offset + length) of that layer. The header
has a checksum of its own, so a damaged length is found before it is believed; and no length is believed beyond what
the kind allows: `MAX_CONTROL_BYTES` for control frames, the rest of the layer (and `MAX_DATA_BYTES`) for data.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass

from common.errors import Reason, WireError
from common.transport.base import KvSink
from common.transport.byte_run import MAX_VIEWS_PER_CALL, ByteRun
from common.transport.checksum import payload_checksum
from common.transport.messages import (
    MAX_CONTROL_BYTES,
    Accept,
    Ack,
    ControlMessage,
    Delivered,
    DirectHello,
    DirectOffer,
    Lent,
    MalformedFrame,
    ReadRequest,
    Refusal,
    TakesMemory,
    Trailer,
    UcxPeer,
)

WIRE_VERSION = 9
MAX_DATA_BYTES = 2 << 20
"""Longest payload of a data frame: what one turn of the event loop copies, sums and hands over (1 ms in all)."""

GOOD_DATA_BYTES = 683 << 10
"""Payload of a data frame that is best to send, three for 2 MiB: a core's own cache (1 MiB, where this was measured)
has it from its sum to its copy, and the frames are few."""

_MAGIC = b"SGKV"
_HEADER = struct.Struct("<4sBBHIQQI")
_HEADER_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _HEADER_CRC.size


class FrameKind(enum.IntEnum):
    """What a frame carries."""

    REQUEST = 1
    ACCEPT = 2
    DATA = 3
    REFUSAL = 4
    ACK = 5
    PEER = 6
    DELIVERED = 7
    TRAILER = 8
    DIRECT_HELLO = 9
    DIRECT_OFFER = 10
    LENT = 11
    TAKES_MEMORY = 12


_MESSAGES: dict[FrameKind, type[ControlMessage]] = {
    FrameKind.REQUEST: ReadRequest,
    FrameKind.ACCEPT: Accept,
    FrameKind.REFUSAL: Refusal,
    FrameKind.ACK: Ack,
    FrameKind.PEER: UcxPeer,
    FrameKind.DELIVERED: Delivered,
    FrameKind.TRAILER: Trailer,
    FrameKind.DIRECT_HELLO: DirectHello,
    FrameKind.DIRECT_OFFER: DirectOffer,
    FrameKind.LENT: Lent,
    FrameKind.TAKES_MEMORY: TakesMemory,
}
_KIND_NUMBERS = frozenset(map(int, FrameKind))
_KINDS = {message: kind for kind, message in _MESSAGES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFrame:
    """Bytes [offset, offset + length) of a layer; the bytes themselves lie in the caller's memory."""

    layer: int
    offset_bytes: int
    length_bytes: int


def encode_control(message: ControlMessage) -> bytes:
    """Whole frame of a control message."""
    payload = message.encode()
    return _header(_KINDS[type(message)], 0, 0, len(payload), payload_checksum(payload)) + payload


def encode_data_header(frame: DataFrame, payload_sum: int) -> bytes:
    """Header of a data frame, whose payload the caller sends right after it."""
    return _header(FrameKind.DATA, frame.layer, frame.offset_bytes, frame.length_bytes, payload_sum)


def _header(kind: FrameKind, layer: int, offset_bytes: int, length_bytes: int, payload_sum: int) -> bytes:
    head = _HEADER.pack(_MAGIC, WIRE_VERSION, kind, 0, layer, offset_bytes, length_bytes, payload_sum)
    return head + _HEADER_CRC.pack(zlib.crc32(head))


@dataclass(frozen=True, slots=True)
class _Header:
    kind: FrameKind
    layer: int
    offset_bytes: int
    length_bytes: int
    payload_sum: int


def _decode_header(data: bytes) -> _Header:
    magic, version, kind, zero, layer, offset_bytes, length_bytes, payload_sum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise MalformedFrame("not a KV frame")
    if version != WIRE_VERSION:
        raise WireError(Reason.LAYOUT_MISMATCH, f"peer speaks KV wire version {version}, not {WIRE_VERSION}")
    if _HEADER_CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        raise WireError(Reason.KV_CHECKSUM, "KV frame header is damaged")
    if zero or kind not in _KIND_NUMBERS:
        raise MalformedFrame(f"unknown kind {kind}")
    return _Header(FrameKind(kind), layer, offset_bytes, length_bytes, payload_sum)


class SinkCursor:
    """Where the next payload byte belongs: layers in order, each without gaps. `first` is the sink's layer 0."""

    def __init__(self, sink: KvSink, first: ByteRun) -> None:
        self._sink = sink
        self._run = first
        self._layer = 0
        self._offset_bytes = 0

    @property
    def layer_filled(self) -> bool:
        """Every byte of the present layer is taken."""
        return self._offset_bytes == self._run.size_bytes

    @property
    def done(self) -> bool:
        """Every byte of every layer is taken."""
        return self.layer_filled and self._layer == self._sink.layers - 1

    @property
    def rest_bytes(self) -> int:
        """What is missing of the present layer."""
        return self._run.size_bytes - self._offset_bytes

    @property
    def due_bytes(self) -> int:
        """What is missing of the present layer, or when it is filled, of the next."""
        return 0 if self.done else self.rest_bytes or self._run.size_bytes

    def take(self, frame: DataFrame) -> ByteRun:
        """The run of the frame's layer, moving the cursor past it; raises `MalformedFrame` if it is not the next."""
        if self.done:
            raise MalformedFrame("data after the last byte")
        if self.layer_filled:
            self._enter(self._layer + 1)
        if (frame.layer, frame.offset_bytes) != (self._layer, self._offset_bytes):
            raise MalformedFrame(f"data for layer {frame.layer} at {frame.offset_bytes} is out of order")
        if not 0 < frame.length_bytes <= min(self._run.size_bytes - self._offset_bytes, MAX_DATA_BYTES):
            raise MalformedFrame(f"data of {frame.length_bytes} bytes does not fit")
        self._offset_bytes += frame.length_bytes
        return self._run

    def _enter(self, layer: int) -> None:
        run = ByteRun(self._sink.views(layer))
        assert run.size_bytes == self._run.size_bytes, "every layer has the same size"
        self._layer, self._offset_bytes, self._run = layer, 0, run


class FrameDecoder:
    """Incremental decoder: `buffers()` says where the next bytes belong, `advance(n)` that n of them are there.

    Only frames of `kinds` are accepted; data only after `expect_data`, and it goes straight into the sink's memory.
    """

    def __init__(self, kinds: frozenset[FrameKind]) -> None:
        self._kinds = kinds
        self._header_bytes = bytearray(HEADER_BYTES)
        self._header_run = ByteRun([memoryview(self._header_bytes)])
        self._cursor: SinkCursor | None = None
        self._await_header()

    def expect_data(self, cursor: SinkCursor) -> None:
        """From now on data frames are welcome."""
        self._cursor = cursor

    @property
    def due_bytes(self) -> int:
        """Bytes that are sure to come, at least, unless the peer ends the stream; more than 0.

        An owner sends a layer to its end before it waits for anything, or it refuses and leaves.
        """
        missing_bytes = self._wanted_bytes - self._filled_bytes
        if self._cursor is None or (self._header is not None and self._header.kind is not FrameKind.DATA):
            return missing_bytes
        if self._header is None:
            return missing_bytes + self._cursor.due_bytes
        return missing_bytes + self._cursor.rest_bytes + (HEADER_BYTES if self._cursor.rest_bytes else 0)

    def buffers(self) -> list[memoryview]:
        """Views for the bytes that come next, never beyond the current frame; at most `MAX_VIEWS_PER_CALL`."""
        missing_bytes = self._wanted_bytes - self._filled_bytes
        return self._run.slice(self._start_bytes + self._filled_bytes, missing_bytes, MAX_VIEWS_PER_CALL)

    def advance(self, count_bytes: int) -> ControlMessage | DataFrame | None:
        """Note that `count_bytes` of `buffers()` were filled; returns the frame they complete, if any.

        Raises `MalformedFrame`, or `WireError`: KV_CHECKSUM (damaged) or LAYOUT_MISMATCH (other wire version).
        """
        self._filled_bytes += count_bytes
        assert self._filled_bytes <= self._wanted_bytes
        if self._filled_bytes < self._wanted_bytes:
            return None
        if self._header is not None:
            return self._finish(self._header)
        header = _decode_header(bytes(self._header_bytes))
        if header.kind not in self._kinds:
            raise MalformedFrame(f"unexpected {header.kind.name}")
        self._await_payload(header)
        return None if header.length_bytes else self._finish(header)

    def _await_header(self) -> None:
        self._header: _Header | None = None
        self._expect(self._header_run, 0, HEADER_BYTES)

    def _await_payload(self, header: _Header) -> None:
        self._header = header
        if header.kind is FrameKind.DATA:
            if self._cursor is None:
                raise MalformedFrame("data before it was agreed")
            self._expect(self._cursor.take(_data_frame(header)), header.offset_bytes, header.length_bytes)
            return
        if header.length_bytes > MAX_CONTROL_BYTES or header.layer or header.offset_bytes:
            raise MalformedFrame(f"{header.kind.name} of {header.length_bytes} bytes")
        self._expect(ByteRun([memoryview(bytearray(header.length_bytes))]), 0, header.length_bytes)

    def _expect(self, run: ByteRun, start_bytes: int, wanted_bytes: int) -> None:
        self._run, self._start_bytes, self._wanted_bytes, self._filled_bytes = run, start_bytes, wanted_bytes, 0

    def _finish(self, header: _Header) -> ControlMessage | DataFrame:
        if self._run.checksum(self._start_bytes, header.length_bytes) != header.payload_sum:
            raise WireError(Reason.KV_CHECKSUM, f"KV {header.kind.name} payload does not match its checksum")
        run = self._run
        self._await_header()
        if header.kind is FrameKind.DATA:
            return _data_frame(header)
        payload = b"".join(run.slice(0, run.size_bytes)) if run.size_bytes else b""
        return _MESSAGES[header.kind].decode(payload)


def _data_frame(header: _Header) -> DataFrame:
    return DataFrame(layer=header.layer, offset_bytes=header.offset_bytes, length_bytes=header.length_bytes)
