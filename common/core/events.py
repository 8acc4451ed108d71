"""What can happen to a `SchedulerCore`. Each is a fact, already true; the core decides what follows."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.cluster import WorkerSpec
from common.core.ids import BlockAttempt, CallId, RequestId, WorkerLife
from common.core.work import BlockCompletion, IterationReport, KvHandle, KvTransfer, RequestSpec, StepDelta
from common.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSubmitted:
    """A gateway asks for a whole request."""

    spec: RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    """The gateway's call ended early: client gone, explicit cancel, or deadline (then `reason` says so)."""

    request_id: RequestId
    reason: Reason = Reason.CANCELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered:
    """A worker life is ready for work."""

    worker: WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker's heartbeat ended or went silent: that life is over."""

    life: WorkerLife


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining:
    """No new work for this worker; what it has may finish."""

    life: WorkerLife


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    """A heartbeat brought a report."""

    life: WorkerLife
    report: IterationReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCompleted:
    """A Prefill call returned. `kv` is None when the block needs no decode, or no K/V (cache mode none)."""

    call_id: CallId
    first: StepDelta
    kv: KvHandle | None
    completion: BlockCompletion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeKvReceived:
    """The decode worker holds the pages now: the prefill side's are free.

    `first` is what the prefill's own step revealed, from a call that began before it was known.
    """

    call_id: CallId
    transfer: KvTransfer
    first: StepDelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStepped:
    """A forward revealed tokens (the step of a local prefill is step 0)."""

    call_id: CallId
    step: StepDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCompleted:
    """The decode call brought its block to the end."""

    call_id: CallId
    completion: BlockCompletion


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """A Prefill or Decode call ended with an error."""

    call_id: CallId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLeaseEnded:
    """A prefill worker no longer holds this attempt's pages (sent, released, or expired)."""

    owner: WorkerLife
    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: deadlines, lease expiries, back-offs are due."""


SchedulerEvent = (
    RequestSubmitted
    | RequestCancelled
    | WorkerRegistered
    | WorkerLost
    | WorkerDraining
    | WorkerReported
    | PrefillCompleted
    | DecodeKvReceived
    | DecodeStepped
    | DecodeCompleted
    | CallFailed
    | KvLeaseEnded
    | Tick
)
