"""The wire format without a wire: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.errors import InvalidRequest, Reason, WireError
from common.transport.base import KvReadRequest
from common.transport.byte_run import ByteRun
from common.transport.frames import (
    HEADER_BYTES,
    MAX_DATA_BYTES,
    WIRE_VERSION,
    DataFrame,
    FrameDecoder,
    FrameKind,
    SinkCursor,
    encode_control,
    encode_data_header,
)
from common.transport.memory_proof import NONCE_BYTES
from common.transport.memory_run import MAX_SPANS, Spans
from common.transport.messages import (
    MAX_CONTROL_BYTES,
    MAX_LENT_BYTES,
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
from common.transport.process_memory import Machine, Standing
from tests.transport.doubles import MemorySink
from tests.transport.wire_peer import accept_frame, data_frame, request_frame

EVERY_KIND = frozenset(FrameKind)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
text = st.text(max_size=60)


def feed(decoder: FrameDecoder, data: bytes, pieces: random.Random | None = None) -> list[ControlMessage | DataFrame]:
    """Frames that `data` completes, given in pieces of random sizes."""
    frames: list[ControlMessage | DataFrame] = []
    while data:
        buffer = decoder.buffers()[0]
        count = min(len(buffer), len(data))
        if pieces is not None:
            count = pieces.randint(1, count)
        buffer[:count], data = data[:count], data[count:]
        frame = decoder.advance(count)
        if frame is not None:
            frames.append(frame)
    return frames


def header(
    kind: int, *, length: int, layer: int = 0, offset: int = 0, version: int = WIRE_VERSION, magic: bytes = b"SGKV"
) -> bytes:
    head = struct.pack("<4sBBHIQQI", magic, version, kind, 0, layer, offset, length, 0)
    return head + struct.pack("<I", zlib.crc32(head))


spans = st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2000)), min_size=1, max_size=50).map(
    lambda table: Spans(np.array(table, dtype=np.uint64))
)

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
addresses = st.integers(0, 2**62)
names = st.text(min_size=1, max_size=60)
messages = st.one_of(
    st.builds(Accept, layers=u32, layer_bytes=u64),
    st.just(Ack()),
    st.builds(
        UcxPeer,
        ucx_version=text,
        worker_address=st.binary(min_size=1, max_size=300),
        first_tag=u64,
        networks_address=st.binary(max_size=40),
        standing=st.one_of(st.none(), st.builds(Standing, segments=names, rights=names)),
        nonce=st.one_of(st.just(b""), nonces),
        memory_key=st.binary(max_size=40),
        proof_address=addresses,
        seal=st.binary(max_size=40),
    ),
    st.just(TakesMemory()),
    st.builds(Delivered, first=u64, payload_sums=st.lists(u32, max_size=70).map(tuple)),
    st.builds(Trailer, data=st.binary(max_size=300), computed_ago_s=st.floats(0.0, 1e6)),
    st.builds(DirectHello, machine=st.builds(Machine, boot_id=text, pid_namespace=text), nonce=nonces),
    st.builds(
        DirectOffer,
        machine=st.builds(Machine, boot_id=text, pid_namespace=text),
        pid=st.integers(1, 2**31 - 1),
        proof_address=addresses,
    ),
    st.builds(Lent, offset_bytes=u64, payload_sum=u64, spans=spans),
    st.builds(
        lambda number, request, worker, block, attempt, incarnation, pages, layout, timeout_s, early: ReadRequest(
            number=number,
            read=KvReadRequest(
                attempt=BlockAttempt(RequestId(request), block, attempt),
                owner=WorkerLife(WorkerId(worker), incarnation),
                layout_fingerprint=layout,
                pages=pages,
                early=early,
            ),
            timeout_s=timeout_s,
        ),
        u64, text, text, u32, u32, u64, u32, text, st.floats(1e-3, 1e6), st.booleans(),
    ),
)  # fmt: skip


@given(st.lists(messages, max_size=4), st.randoms(use_true_random=False))
def test_control_messages_survive_any_cutting(sent: list[ControlMessage], pieces: random.Random) -> None:
    wire = b"".join(map(encode_control, sent))
    assert feed(FrameDecoder(EVERY_KIND), wire, pieces) == sent


@given(st.sampled_from(Reason), st.text(max_size=3000), u64)
def test_a_refusal_keeps_its_reason_and_the_start_of_its_words(reason: Reason, message: str, number: int) -> None:
    (frame,) = feed(FrameDecoder(EVERY_KIND), encode_control(Refusal(error=WireError(reason, message), number=number)))
    assert isinstance(frame, Refusal) and (frame.error.reason, frame.number) == (reason, number)
    assert message.startswith(frame.error.message)
    assert len(message.encode()) > 1000 or frame.error.message == message


def test_a_reason_of_a_later_version_reads_as_internal() -> None:
    payload = bytes(8) + b"\x04\x00NEWS\x02\x00hi"
    error = Refusal.decode(payload).error
    assert (error.reason, error.message) == (Reason.INTERNAL, "hi")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_data_lands_in_the_sink(lengths: list[int], layers: int, pieces: random.Random) -> None:
    layer_bytes = sum(lengths)
    data = [random.Random(layer).randbytes(layer_bytes) for layer in range(layers)]
    wire, expected = b"", []
    for layer, content in enumerate(data):
        offset = 0
        for length in lengths:
            wire += data_frame(layer, offset, content[offset : offset + length])
            expected.append(DataFrame(layer=layer, offset_bytes=offset, length_bytes=length))
            offset += length
    sink = MemorySink(layers, layer_bytes, piece_bytes=7, gap_bytes=2)
    decoder, cursor = FrameDecoder(EVERY_KIND), SinkCursor(sink, ByteRun(sink.views(0)))
    decoder.expect_data(cursor)
    assert feed(decoder, wire, pieces) == expected
    assert sink.content == data and cursor.done


def decoder_for(layers: int = 2, layer_bytes: int = 8) -> FrameDecoder:
    decoder = FrameDecoder(EVERY_KIND)
    sink = MemorySink(layers, layer_bytes)
    decoder.expect_data(SinkCursor(sink, ByteRun(sink.views(0))))
    return decoder


BAD_WIRES = {
    "gap": data_frame(0, 4, b"1234"),
    "layer skipped": data_frame(1, 0, b"12345678"),
    "repeated": data_frame(0, 0, b"1234") * 2,
    "layer left early": data_frame(0, 0, b"1234") + data_frame(1, 0, b"12345678"),
    "layer repeated": data_frame(0, 0, b"12345678") * 2,
    "layer too many": b"".join(data_frame(layer, 0, b"12345678") for layer in range(3)),
    "data too long": header(FrameKind.DATA, length=9),
    "data huge": header(FrameKind.DATA, length=2**63),
    "data empty": header(FrameKind.DATA, length=0),
    "accept huge": header(FrameKind.ACCEPT, length=2**64 - 1),
    "refusal too long": header(FrameKind.REFUSAL, length=MAX_CONTROL_BYTES + 1),
    "ack of a layer": header(FrameKind.ACK, length=0, layer=1),
    "kind 0": header(0, length=0),
    "kind 99": header(99, length=0),
    "foreign": header(FrameKind.ACK, length=0, magic=b"HTTP"),
}


@pytest.mark.parametrize("wire", BAD_WIRES.values(), ids=BAD_WIRES)
def test_frames_out_of_order_or_too_long_are_refused(wire: bytes) -> None:
    with pytest.raises(MalformedFrame) as caught:
        feed(decoder_for(), wire)
    assert caught.value.reason is Reason.KV_CHECKSUM


def test_data_longer_than_one_turn_allows_is_refused() -> None:
    decoder = decoder_for(1, 2 * MAX_DATA_BYTES)
    with pytest.raises(MalformedFrame):
        feed(decoder, header(FrameKind.DATA, length=MAX_DATA_BYTES + 1))


def test_data_before_it_is_agreed_is_refused() -> None:
    with pytest.raises(MalformedFrame):
        feed(FrameDecoder(EVERY_KIND), data_frame(0, 0, b"1234"))


def test_a_kind_that_this_side_never_gets_is_refused() -> None:
    with pytest.raises(MalformedFrame):
        feed(FrameDecoder(frozenset({FrameKind.REQUEST})), encode_control(Ack()))


def test_another_wire_version_is_a_layout_mismatch() -> None:
    with pytest.raises(WireError) as caught:
        feed(FrameDecoder(EVERY_KIND), header(FrameKind.ACK, length=0, version=WIRE_VERSION - 1))
    assert caught.value.reason is Reason.LAYOUT_MISMATCH


@pytest.mark.parametrize(
    "wire",
    [request_frame(), accept_frame(2, 8), data_frame(0, 0, b"12345678"), encode_control(Ack())],
    ids=["request", "accept", "data", "ack"],
)
def test_every_flipped_bit_is_found(wire: bytes) -> None:
    for position in range(len(wire) * 8):
        damaged = bytearray(wire)
        damaged[position // 8] ^= 1 << position % 8
        decoder = decoder_for()
        with pytest.raises(WireError) as caught:
            feed(decoder, bytes(damaged))
        assert caught.value.reason in (Reason.KV_CHECKSUM, Reason.LAYOUT_MISMATCH)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(garbage: bytes) -> None:
    decoder = decoder_for()
    try:
        assert feed(decoder, garbage) == []
    except WireError as error:
        assert error.reason in (Reason.KV_CHECKSUM, Reason.LAYOUT_MISMATCH)


@given(
    st.binary(max_size=80),
    st.sampled_from([ReadRequest, Accept, Refusal, Ack, UcxPeer, DirectHello, DirectOffer, Lent]),
)
def test_garbage_payloads_are_refused(payload: bytes, kind: type[ControlMessage]) -> None:
    try:
        message = kind.decode(payload)
    except MalformedFrame:
        return
    assert isinstance(message, Refusal) or message.encode() == payload


def lent(*table: tuple[int, int], length: int) -> bytes:
    """Payload of a `Lent` that lends `table` and says that it has `length` bytes."""
    return struct.pack("<QQQ", 0, length, 0) + b"".join(struct.pack("<QQ", *span) for span in table)


BAD_LENT = {
    "no spans": lent(length=0),
    "no spans for bytes": lent(length=8),
    "empty span": lent((4096, 8), (8192, 0), length=8),
    "fewer bytes": lent((4096, 8), (8192, 7), length=16),
    "more bytes": lent((4096, 8), (8192, 9), length=16),
    "more than one turn": lent((4096, MAX_LENT_BYTES + 1), length=MAX_LENT_BYTES + 1),
    "lengths that wrap around": lent((4096, 2**63), (8192, 2**63 + 16), length=16),
    "beyond the end of memory": lent((2**64 - 8, 16), length=16),
    "where no process has memory": lent((2**63, 16), length=16),
    "huge length": lent((4096, 16), length=2**64 - 1),
    "half a span": lent((4096, 16), length=16) + bytes(8),
    "too many spans": lent(*[(4096, 1)] * (MAX_SPANS + 1), length=MAX_SPANS + 1),
}


@pytest.mark.parametrize("payload", BAD_LENT.values(), ids=BAD_LENT)
def test_memory_that_cannot_be_lent_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        Lent.decode(payload)


def test_as_much_as_can_be_lent_at_once_is_understood() -> None:
    longest = Lent.decode(lent((4096, MAX_LENT_BYTES), length=MAX_LENT_BYTES))
    assert longest.spans.size_bytes == MAX_LENT_BYTES
    most = Lent.decode(lent(*[(4096, 1)] * MAX_SPANS, length=MAX_SPANS))
    assert len(most.spans) == MAX_SPANS
    assert len(most.encode()) <= MAX_CONTROL_BYTES


SOMEWHERE = b"\x04\x00boot\x03\x00pid"


def test_an_offer_names_its_machine() -> None:
    offer = DirectOffer.decode(struct.pack("<IQ", 1, 4096) + SOMEWHERE)
    assert offer.machine == Machine(boot_id="boot", pid_namespace="pid")


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack("<IQ", 0, 4096) + SOMEWHERE,
        struct.pack("<IQ", 2**31, 4096) + SOMEWHERE,
        struct.pack("<IQ", 1, 2**64 - 1) + SOMEWHERE,
        struct.pack("<I", 1),
        struct.pack("<IQ", 1, 4096),
        struct.pack("<IQ", 1, 4096) + SOMEWHERE + b"x",
    ],
    ids=["process 0", "process beyond all", "proof beyond the end", "no proof", "no machine", "more than a machine"],
)
def test_an_offer_of_no_process_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        DirectOffer.decode(payload)


@pytest.mark.parametrize(
    "peer",
    [
        UcxPeer(ucx_version="1", worker_address=b"", first_tag=1),
        UcxPeer(ucx_version="1", worker_address=b"x", first_tag=1, nonce=bytes(NONCE_BYTES - 1)),
        UcxPeer(ucx_version="1", worker_address=b"x", first_tag=1, proof_address=2**64 - 1),
    ],
    ids=["no address", "half a nonce", "proof beyond the end"],
)
def test_an_introduction_that_leads_nowhere_is_refused(peer: UcxPeer) -> None:
    with pytest.raises(MalformedFrame):
        UcxPeer.decode(peer.encode())


def test_a_claimed_length_allocates_nothing() -> None:
    wires = [header(kind, length=2**40) for kind in FrameKind]
    tracemalloc.start()
    try:
        for wire in wires:
            with pytest.raises(MalformedFrame):
                feed(FrameDecoder(EVERY_KIND), wire)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("length", [61_500, 70_000])
def test_a_request_id_too_long_for_a_frame_is_refused(length: int) -> None:
    read = KvReadRequest(
        attempt=BlockAttempt(RequestId("x" * length), 0, 0),
        owner=WorkerLife(WorkerId("p0"), 1),
        layout_fingerprint="",
        pages=1,
    )
    with pytest.raises(InvalidRequest):
        encode_control(ReadRequest(number=1, read=read, timeout_s=1.0))


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_senseless_timeout_is_refused(timeout_s: float) -> None:
    with pytest.raises(MalformedFrame):
        feed(FrameDecoder(EVERY_KIND), request_frame(timeout_s=timeout_s))


@pytest.mark.parametrize("computed_ago_s", [float("nan"), float("inf"), -0.1])
def test_a_senseless_time_since_the_prefill_is_refused(computed_ago_s: float) -> None:
    with pytest.raises(MalformedFrame):
        feed(FrameDecoder(EVERY_KIND), encode_control(Trailer(data=b"", computed_ago_s=computed_ago_s)))


def test_header_size_is_what_the_format_says() -> None:
    assert HEADER_BYTES == 36
    head = struct.pack("<4sBBHIQQI", b"SGKV", WIRE_VERSION, 3, 0, 3, 5, 7, 9)
    frame = DataFrame(layer=3, offset_bytes=5, length_bytes=7)
    assert encode_data_header(frame, 9) == head + struct.pack("<I", zlib.crc32(head))
