"""Refusals at the door: what a `RequestSpec` must satisfy before the scheduler takes it in."""

from __future__ import annotations

from common.core.work import RequestSpec
from common.errors import InvalidRequest, Reason, TooLong, WireError

RETRY_AFTER_S = 1.0

MAX_REQUEST_ID_CHARACTERS = 128
"""An id is in every message, line and log about its request."""


def check_spec(spec: RequestSpec) -> None:
    """Raise `InvalidRequest` naming the field that makes no sense, `WireError` when the deadline has passed."""
    if not 0 < len(spec.request_id) <= MAX_REQUEST_ID_CHARACTERS:
        raise InvalidRequest("request_id", f"must be 1 to {MAX_REQUEST_ID_CHARACTERS} characters")
    for name, value in (("max_tokens", spec.max_tokens), ("block_length_tokens", spec.block_length_tokens)):
        if value < 1:
            raise InvalidRequest(name, f"must be at least 1, not {value}")
    if not spec.prompt_token_ids:
        raise InvalidRequest("prompt_token_ids", "must not be empty")
    committed = len(spec.committed_token_ids)
    if committed % spec.block_length_tokens or committed > spec.blocks * spec.block_length_tokens:
        raise InvalidRequest("committed_token_ids", f"must be whole blocks of the request, not {committed} tokens")
    if any(not committed <= position < committed + spec.block_length_tokens for position, _ in spec.shown):
        raise InvalidRequest("shown", "must lie in the block after the committed ones")
    if spec.deadline_s is not None and not spec.deadline_s > 0.0:
        raise WireError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the request was taken in")


def check_length(spec: RequestSpec, max_gen_len_tokens: int) -> None:
    """Raise `TooLong` when the generated part of every canvas is fixed (above 0) and the request wants more."""
    if 0 < max_gen_len_tokens < spec.max_tokens:
        raise TooLong("max_tokens", f"this cluster generates at most {max_gen_len_tokens} tokens per request")


def check_fits(spec: RequestSpec, canvas_limit_tokens: int, *, max_gen_len_tokens: int = 0) -> None:
    """Raise `TooLong` when no live worker could ever hold the canvas."""
    canvas_tokens = len(spec.prompt_token_ids) + spec.generated_tokens(max_gen_len_tokens)
    if canvas_tokens > canvas_limit_tokens:
        raise TooLong(
            "max_tokens",
            f"prompt and generated blocks need {canvas_tokens} tokens; the longest canvas "
            f"any worker can hold is {canvas_limit_tokens}",
        )


def check_room(queued: int, limit: int) -> None:
    """Raise `WireError` QUEUE_FULL (with a retry hint) when `limit` requests wait for their first placement."""
    if queued >= limit:
        raise WireError(
            Reason.QUEUE_FULL,
            f"{queued} requests are waiting already",
            metadata={"limit": str(limit)},
            retry_after_s=RETRY_AFTER_S,
        )


def duplicate_id(spec: RequestSpec) -> WireError:
    """The refusal of an id that a living request has; that one is not touched."""
    return WireError(Reason.DUPLICATE_REQUEST_ID, f"request id {spec.request_id!r} is in use")
