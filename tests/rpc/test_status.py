"""`WireError` <-> google.rpc.Status, and what bare gRPC codes mean."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BadSamplingParams, InvalidPrompt, InvalidRequest, Reason, TooLong, WireError
from common.rpc.options import MAX_MESSAGE_BYTES
from common.rpc.status import to_rich_status, wire_error, wire_error_for
from sangam.v1 import inference_pb2
from tests.rpc.scripted import Loopback, ScriptedGateway, committed

# The table of the design's section 5, written out a second time.
EXPECTED_CODES = {
    "INVALID_PROMPT": "INVALID_ARGUMENT",
    "TOO_LONG": "INVALID_ARGUMENT",
    "BAD_SAMPLING_PARAMS": "INVALID_ARGUMENT",
    "INVALID_REQUEST": "INVALID_ARGUMENT",
    "DUPLICATE_REQUEST_ID": "ALREADY_EXISTS",
    "QUEUE_FULL": "RESOURCE_EXHAUSTED",
    "NO_KV_PAGES": "RESOURCE_EXHAUSTED",
    "STALE_INCARNATION": "FAILED_PRECONDITION",
    "STALE_ATTEMPT": "FAILED_PRECONDITION",
    "LAYOUT_MISMATCH": "FAILED_PRECONDITION",
    "KV_NOT_FOUND": "NOT_FOUND",
    "KV_LEASE_EXPIRED": "NOT_FOUND",
    "KV_CHECKSUM": "DATA_LOSS",
    "WORKER_DRAINING": "UNAVAILABLE",
    "WORKER_NOT_FOUND": "NOT_FOUND",
    "PEER_LOST": "UNAVAILABLE",
    "ATTEMPTS_EXHAUSTED": "ABORTED",
    "SCHEDULER_UNAVAILABLE": "UNAVAILABLE",
    "NOT_LEADER": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "DEADLINE_EXCEEDED": "DEADLINE_EXCEEDED",
    "INTERNAL": "INTERNAL",
}
FIELD_ERRORS = {
    Reason.INVALID_REQUEST: InvalidRequest,
    Reason.INVALID_PROMPT: InvalidPrompt,
    Reason.TOO_LONG: TooLong,
    Reason.BAD_SAMPLING_PARAMS: BadSamplingParams,
}
texts = st.text(max_size=60)


def received(error: WireError) -> grpc.aio.AioRpcError:
    """The exception a client gets for `error`."""
    status = rpc_status.to_status(to_rich_status(error))
    trailers = grpc.aio.Metadata(*status.trailing_metadata)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailers, details=status.details)


def bare(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_the_designs_code(reason):
    assert received(WireError(reason, "x")).code().name == EXPECTED_CODES[reason.name]


@given(
    reason=st.sampled_from(Reason),
    message=texts,
    metadata=st.dictionaries(texts, texts, max_size=3),
    retry_after_s=st.none() | st.floats(min_value=0, max_value=1e6).map(lambda value: round(value, 6)),
)
def test_wire_error_round_trips(reason, message, metadata, retry_after_s):
    seen = wire_error(received(WireError(reason, message, metadata=metadata, retry_after_s=retry_after_s)))
    assert (seen.reason, seen.message, seen.metadata) == (reason, message, metadata)
    assert seen.retry_after_s == (None if retry_after_s is None else pytest.approx(retry_after_s, abs=1e-8))


@given(kind=st.sampled_from(list(FIELD_ERRORS.values())), field=st.text(min_size=1, max_size=20), problem=texts)
def test_field_error_round_trips_as_its_own_class(kind, field, problem):
    seen: Any = wire_error(received(kind(field, problem)))
    assert type(seen) is kind
    assert (seen.field, seen.problem, seen.reason) == (field, problem, kind.reason_code)


@pytest.mark.parametrize(("reason", "kind"), FIELD_ERRORS.items())
def test_wire_error_for_builds_the_class_of_a_reason_that_names_a_field(reason, kind):
    for message in ("is wrong", "f: is wrong"):
        error = wire_error_for(reason, message, field="f")
        assert type(error) is kind
        assert str(error) == "f: is wrong"
    assert type(wire_error_for(Reason.PEER_LOST, "gone")) is WireError


def test_unsendable_text_is_cleaned_instead_of_failing_the_status():
    seen = wire_error(received(WireError(Reason.INTERNAL, "\ud800" + "x" * 5000)))
    assert seen.message.startswith("?xxx")
    assert len(seen.message) == 1000


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("UNAVAILABLE", Reason.PEER_LOST),
        ("DEADLINE_EXCEEDED", Reason.DEADLINE_EXCEEDED),
        ("CANCELLED", Reason.PEER_LOST),
        ("RESOURCE_EXHAUSTED", Reason.QUEUE_FULL),
        ("INVALID_ARGUMENT", Reason.INVALID_REQUEST),
        ("UNKNOWN", Reason.PEER_LOST),
        ("UNIMPLEMENTED", Reason.INTERNAL),
    ],
)
def test_bare_codes(code, reason):
    seen = wire_error(bare(grpc.StatusCode[code], "host 10.0.0.7 secret"))
    assert seen.reason is reason
    assert "secret" not in seen.message


def test_details_that_are_not_ours_count_as_bare():
    foreign = to_rich_status(WireError(Reason.QUEUE_FULL, "x"))
    foreign.details.clear()
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", foreign.SerializeToString()))
    error = grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), trailers, details="x")
    assert wire_error(error).reason is Reason.QUEUE_FULL
    garbage = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), garbage, details="x")
    assert wire_error(error).reason is Reason.PEER_LOST


async def test_a_request_over_the_size_limit_is_the_callers_mistake_not_overload():
    unlimited = [("grpc.max_send_message_length", -1)]
    too_big = inference_pb2.TokenizeRequest(text="x" * (MAX_MESSAGE_BYTES + 1))
    async with (
        Loopback(ScriptedGateway()) as loopback,
        grpc.aio.insecure_channel(loopback.address, options=unlimited) as foreign,
    ):
        for channel in (loopback.channel, foreign):  # refused by our own channel, and by our server
            call: Any = channel.unary_unary(
                "/sangam.v1.InferenceService/Tokenize", inference_pb2.TokenizeRequest.SerializeToString
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(too_big, timeout=30)
            seen = wire_error(caught.value)
            assert isinstance(seen, InvalidRequest)
            assert seen.field == "message"
            assert str(MAX_MESSAGE_BYTES) in seen.problem


async def test_an_answer_over_the_size_limit_is_the_peers_fault():
    async def stream(context):
        yield committed("x" * (MAX_MESSAGE_BYTES + 1))

    async with Loopback(ScriptedGateway(stream=stream)) as loopback:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in loopback.generate(timeout=30):
                pass
    assert wire_error(caught.value).reason is Reason.INTERNAL


async def test_a_message_near_the_size_limit_passes():
    text = "x" * (MAX_MESSAGE_BYTES - 1000)
    async with Loopback(ScriptedGateway()) as loopback:
        answer = await loopback.stub.Tokenize(inference_pb2.TokenizeRequest(text=text), timeout=30)
    assert answer.text == text


async def test_nobody_listening_is_a_lost_peer():
    async with Loopback(ScriptedGateway()) as loopback:
        await loopback.server.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loopback.stub.Tokenize(inference_pb2.TokenizeRequest(), timeout=10)
    assert wire_error(caught.value).reason is Reason.PEER_LOST
