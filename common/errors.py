"""The exception tree, and the one table of reasons that travel between services.

SangamError
├── InvalidRequest            INVALID_ARGUMENT, names the field
│   ├── InvalidPrompt         INVALID_PROMPT
│   ├── TooLong               TOO_LONG
│   └── BadSamplingParams     BAD_SAMPLING_PARAMS
├── CheckpointError           a model folder that cannot be loaded: names file and tensor (never on the wire)
├── ConfigError               a setting with a bad value: names the option (never on the wire)
└── WireError                 everything else with a `Reason`

`assert` is for bugs; these are for the world. How a reason maps to a gRPC status is `common.rpc.status`' business.
"""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """Why a call ended (google.rpc.ErrorInfo.reason, domain "sangam.v1")."""

    INVALID_PROMPT = "INVALID_PROMPT"
    TOO_LONG = "TOO_LONG"
    BAD_SAMPLING_PARAMS = "BAD_SAMPLING_PARAMS"
    INVALID_REQUEST = "INVALID_REQUEST"
    DUPLICATE_REQUEST_ID = "DUPLICATE_REQUEST_ID"
    QUEUE_FULL = "QUEUE_FULL"
    NO_KV_PAGES = "NO_KV_PAGES"
    STALE_INCARNATION = "STALE_INCARNATION"
    STALE_ATTEMPT = "STALE_ATTEMPT"
    LAYOUT_MISMATCH = "LAYOUT_MISMATCH"
    KV_NOT_FOUND = "KV_NOT_FOUND"
    KV_LEASE_EXPIRED = "KV_LEASE_EXPIRED"
    KV_CHECKSUM = "KV_CHECKSUM"
    WORKER_DRAINING = "WORKER_DRAINING"
    WORKER_NOT_FOUND = "WORKER_NOT_FOUND"
    PEER_LOST = "PEER_LOST"
    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    SCHEDULER_UNAVAILABLE = "SCHEDULER_UNAVAILABLE"
    NOT_LEADER = "NOT_LEADER"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


class SangamError(Exception):
    """Base of every expected failure; `str()` is fit for a user."""


class WireError(SangamError):
    """A failure that crosses services: `reason` decides who retries, `message` is safe to show anyone.

    `metadata` holds small facts (worker id, limits) that machines may read; `retry_after_s` fills RetryInfo.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        metadata: dict[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}
        self.retry_after_s = retry_after_s


class InvalidRequest(WireError):
    """The caller's mistake in one named field."""

    reason_code = Reason.INVALID_REQUEST

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(self.reason_code, f"{field}: {problem}", metadata={"field": field})
        self.field = field
        self.problem = problem


class InvalidPrompt(InvalidRequest):
    """The prompt is empty, holds ids out of vocabulary, or the mask id."""

    reason_code = Reason.INVALID_PROMPT


class TooLong(InvalidRequest):
    """Prompt plus generated canvas exceeds the model's maximum or every worker's pool."""

    reason_code = Reason.TOO_LONG


class BadSamplingParams(InvalidRequest):
    """A sampling field is out of range."""

    reason_code = Reason.BAD_SAMPLING_PARAMS


class CheckpointError(SangamError):
    """A checkpoint folder is missing, incomplete or malformed; the text names the file and the tensor."""


class ConfigError(SangamError):
    """A setting has a value that is not allowed; the text names the option and the allowed values."""
