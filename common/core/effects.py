"""What a `SchedulerCore` asks its shell to do. Each effect's outcome comes back as an event.

`deadline_s` of a call is the time left to its request, in seconds from now; None when it has no deadline.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from common.core.ids import BlockAttempt, CallId, RequestId, WorkerLife
from common.core.work import BlockWork, FinishReason, KvSource, StepDelta
from common.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPrefill:
    """Run the block's prefill on `target`; outcome: PrefillCompleted or CallFailed with this `call_id`."""

    call_id: CallId
    target: WorkerLife
    work: BlockWork
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecode:
    """Run the block's decode on `target`; outcomes carry this `call_id`, the last is DecodeCompleted or CallFailed."""

    call_id: CallId
    target: WorkerLife
    work: BlockWork
    source: KvSource
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCall:
    """Cancel that call; whatever it still answers is dropped by the core."""

    call_id: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseKv:
    """Tell `owner` (over its heartbeat) to free the K/V it retains for `attempt`."""

    owner: WorkerLife
    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceWorker:
    """Drop the registry's entries of this life, and close peers' connections to it."""

    life: WorkerLife


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStep:
    """Tokens newly revealed for the client, never repeated: deltas only."""

    request_id: RequestId
    block: int
    step: StepDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlacement:
    """Where one finished block ran and what it cost (forwards, seconds, bytes).

    `transfer_exposed_s` is the part of `transfer_s` that the prefill did not hide (`KvTransfer`).
    """

    block: int
    prefill_worker_id: str
    decode_worker_id: str | None
    overflow: bool
    prefill_forwards: int
    decode_forwards: int
    attempts: int
    queue_s: float
    prefill_s: float
    transfer_s: float
    transfer_exposed_s: float
    transfer_bytes: int
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishBlock:
    """A block is committed."""

    request_id: RequestId
    placement: BlockPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRequest:
    """The request ended well; nothing more will be published for it."""

    request_id: RequestId
    finish: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRequest:
    """The request ended badly, or was cancelled. `field` names the offending input for InvalidRequest reasons.

    `story` is for the log, never for the client: what went wrong inside, and the request's latest moves.
    """

    request_id: RequestId
    reason: Reason
    message: str
    field: str = ""
    story: str = dataclasses.field(default="", compare=False)


SchedulerEffect = (
    CallPrefill
    | CallDecode
    | CancelCall
    | ReleaseKv
    | FenceWorker
    | PublishStep
    | PublishBlock
    | FinishRequest
    | FailRequest
)
