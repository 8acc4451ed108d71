"""What a client is told when its request ends badly: fixed text per reason, nothing of the inside."""

from __future__ import annotations

from common.errors import Reason

_MESSAGES = {
    Reason.ATTEMPTS_EXHAUSTED: "every attempt at a block failed; try again",
    Reason.CANCELLED: "the request was cancelled",
    Reason.DEADLINE_EXCEEDED: "the deadline passed",
    Reason.TOO_LONG: "prompt and generated tokens fit no worker",
    Reason.LAYOUT_MISMATCH: "no two workers can exchange K/V",
}

_CALLERS_MISTAKES = frozenset(
    {
        Reason.INVALID_PROMPT,
        Reason.TOO_LONG,
        Reason.BAD_SAMPLING_PARAMS,
        Reason.INVALID_REQUEST,
        Reason.DEADLINE_EXCEEDED,
    }
)


def message_for(reason: Reason) -> str:
    """Text for the client."""
    if reason in _CALLERS_MISTAKES:
        return _MESSAGES.get(reason, "the workers refused the request's parameters")
    return _MESSAGES.get(reason, "the request failed inside the server")


def client_reason(reason: Reason) -> Reason:
    """What a worker's final refusal is to the client: its own mistake, or INTERNAL."""
    return reason if reason in _CALLERS_MISTAKES else Reason.INTERNAL
