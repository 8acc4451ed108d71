"""Errors on the wire: `WireError` <-> google.rpc.Status with ErrorInfo, BadRequest and RetryInfo (design, section 5).

The client's side also reads what gRPC itself reports without details: a lost peer, a deadline, a message over the
size limit (which shares its code with overload and is told apart by its text).
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types
from grpc_status import rpc_status

from common.errors import BadSamplingParams, InvalidPrompt, InvalidRequest, Reason, TooLong, WireError
from common.rpc.options import MAX_MESSAGE_BYTES

DOMAIN = "sangam.v1"
INTERNAL_TEXT = "internal error"
# Trailers hold the message twice and are limited to 8 KiB.
_MAX_MESSAGE_CHARACTERS = 1000

_CODES: dict[Reason, int] = {
    Reason.INVALID_PROMPT: code_pb2.INVALID_ARGUMENT,
    Reason.TOO_LONG: code_pb2.INVALID_ARGUMENT,
    Reason.BAD_SAMPLING_PARAMS: code_pb2.INVALID_ARGUMENT,
    Reason.INVALID_REQUEST: code_pb2.INVALID_ARGUMENT,
    Reason.DUPLICATE_REQUEST_ID: code_pb2.ALREADY_EXISTS,
    Reason.QUEUE_FULL: code_pb2.RESOURCE_EXHAUSTED,
    Reason.NO_KV_PAGES: code_pb2.RESOURCE_EXHAUSTED,
    Reason.STALE_INCARNATION: code_pb2.FAILED_PRECONDITION,
    Reason.STALE_ATTEMPT: code_pb2.FAILED_PRECONDITION,
    Reason.LAYOUT_MISMATCH: code_pb2.FAILED_PRECONDITION,
    Reason.KV_NOT_FOUND: code_pb2.NOT_FOUND,
    Reason.KV_LEASE_EXPIRED: code_pb2.NOT_FOUND,
    Reason.KV_CHECKSUM: code_pb2.DATA_LOSS,
    Reason.WORKER_DRAINING: code_pb2.UNAVAILABLE,
    Reason.WORKER_NOT_FOUND: code_pb2.NOT_FOUND,
    Reason.PEER_LOST: code_pb2.UNAVAILABLE,
    Reason.ATTEMPTS_EXHAUSTED: code_pb2.ABORTED,
    Reason.SCHEDULER_UNAVAILABLE: code_pb2.UNAVAILABLE,
    Reason.NOT_LEADER: code_pb2.UNAVAILABLE,
    Reason.CANCELLED: code_pb2.CANCELLED,
    Reason.DEADLINE_EXCEEDED: code_pb2.DEADLINE_EXCEEDED,
    Reason.INTERNAL: code_pb2.INTERNAL,
}
_FIELD_ERRORS: dict[Reason, type[InvalidRequest]] = {
    error.reason_code: error for error in (InvalidRequest, InvalidPrompt, TooLong, BadSamplingParams)
}
# What a status without our details means for the caller.
_BARE: dict[grpc.StatusCode, tuple[Reason, str]] = {
    grpc.StatusCode.UNAVAILABLE: (Reason.PEER_LOST, "the peer cannot be reached, or went away"),
    # Ours never say this: a connection that broke ("Stream removed"), or could not even be made.
    grpc.StatusCode.UNKNOWN: (Reason.PEER_LOST, "the call broke for a reason unknown"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (Reason.DEADLINE_EXCEEDED, "the deadline passed"),
    # Our own cancelling raises CancelledError, never this: a stopping server answers new calls so.
    grpc.StatusCode.CANCELLED: (Reason.PEER_LOST, "the peer cancelled the call"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Reason.QUEUE_FULL, "the peer is overloaded"),
    grpc.StatusCode.INVALID_ARGUMENT: (Reason.INVALID_REQUEST, "the peer refused the request"),
}
_OVERSIZED_REQUEST = re.compile(r"(CLIENT: Sent|SERVER: Received) message larger than max")
_OVERSIZED_ANSWER = re.compile(r"(CLIENT: Received|SERVER: Sent) message larger than max")


def wire_error_for(reason: Reason, message: str, *, field: str = "") -> WireError:
    """The error of that reason, of its own class when the reason names a field (then `message` is the problem)."""
    if reason in _FIELD_ERRORS and field:
        return _FIELD_ERRORS[reason](field, message.removeprefix(f"{field}: "))
    return WireError(reason, message)


def to_rich_status(error: WireError) -> status_pb2.Status:
    """What the wire says for `error`: its code, its message, ErrorInfo, and BadRequest or RetryInfo where they fit."""
    status = status_pb2.Status(code=_CODES[error.reason], message=_clean(error.message))
    metadata = {key: _clean(value) for key, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=metadata)
    status.details.add().Pack(info)
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_clean(error.field), description=_clean(error.problem)
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    return status


def wire_error(rpc_error: grpc.aio.AioRpcError) -> WireError:
    """What a failed call means: the peer's own WireError when it sent one, else what gRPC's code says."""
    status = _rich_status_of(rpc_error)
    details = _unpack(status) if status is not None else {}
    info = details.get(error_details_pb2.ErrorInfo)
    if status is None or info is None or info.domain != DOMAIN or info.reason not in Reason.__members__:
        return _bare_error(rpc_error)
    error = _error_of(Reason[info.reason], status.message, details.get(error_details_pb2.BadRequest))
    error.metadata = dict(info.metadata)
    if retry := details.get(error_details_pb2.RetryInfo):
        error.retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return error


def internal_error(trace_id: str) -> WireError:
    """All that a client may know of a bug: where the log has more of it."""
    return WireError(Reason.INTERNAL, f"{INTERNAL_TEXT} (trace {trace_id})", metadata={"trace_id": trace_id})


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: WireError) -> NoReturn:
    """End the call of `context` with `error`; never returns."""
    status = rpc_status.to_status(to_rich_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort returned")


def _error_of(reason: Reason, message: str, bad_request: Any) -> WireError:
    if bad_request is None or not bad_request.field_violations:
        return WireError(reason, message)
    violation = bad_request.field_violations[0]
    return wire_error_for(reason, violation.description, field=violation.field)


def _rich_status_of(rpc_error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    try:
        status: status_pb2.Status | None = rpc_status.from_call(rpc_error)
    except (ValueError, DecodeError):  # a proxy rewrote the code or the text: its word counts
        return None
    return status


def _unpack(status: status_pb2.Status) -> dict[type[Any], Any]:
    found: dict[type[Any], Any] = {}
    for detail in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            message = kind()
            if detail.Unpack(message):
                found[kind] = message
    return found


def _bare_error(rpc_error: grpc.aio.AioRpcError) -> WireError:
    code, details = rpc_error.code(), rpc_error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVERSIZED_REQUEST.search(details):
        return InvalidRequest("message", f"larger than the limit of {MAX_MESSAGE_BYTES} bytes")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVERSIZED_ANSWER.search(details):
        return WireError(Reason.INTERNAL, f"the peer's answer is larger than the limit of {MAX_MESSAGE_BYTES} bytes")
    reason, message = _BARE.get(code, (Reason.INTERNAL, f"the peer failed ({code.name})"))
    return WireError(reason, message)


def _clean(text: str) -> str:
    """`text` as the wire can carry it: bounded, and without what UTF-8 cannot encode."""
    return text[:_MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
