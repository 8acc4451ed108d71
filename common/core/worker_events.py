"""What can happen to a `WorkerCore`. The same core serves both roles; the role only decides which calls arrive."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.work import BlockWork, KvSource, KvTransfer, StepDelta
from common.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRequested:
    """A Prefill call arrived (prefill role): run step 0, keep the K/V under lease."""

    work: BlockWork


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequested:
    """A Decode call arrived (decode role) with its K/V source."""

    work: BlockWork
    source: KvSource


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCancelled:
    """The call for this attempt ended early; its outcome no longer matters."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFetched:
    """Every page of the attempt's K/V is in this worker's pool.

    `first` is what the prefill's own step revealed, for a fetch that was begun before it was known.
    """

    attempt: BlockAttempt
    transfer: KvTransfer
    first: StepDelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFetchFailed:
    """The fetch ended without usable K/V (also the end of a cancelled fetch: only now may its pages be reused)."""

    attempt: BlockAttempt
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCompleted:
    """The forward thread finished the batch of `RunIteration(iteration)`; one delta per attempt, in batch order."""

    iteration: int
    deltas: tuple[tuple[BlockAttempt, StepDelta], ...]
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvReleased:
    """The K/V retained for this attempt is no longer needed: the peer has it all."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSendStarted:
    """The data plane began to read pages on offer, or of a prefill that runs: not to be reused until KvSendEnded."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSendEnded:
    """The data plane stopped reading those pages (whether or not the peer got them)."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEnded:
    """This life was fenced: drop everything that no forward or transfer is using."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTick:
    """Time has passed: leases and waits are due."""


WorkerEvent = (
    PrefillRequested
    | DecodeRequested
    | WorkCancelled
    | KvFetched
    | KvFetchFailed
    | IterationCompleted
    | KvReleased
    | KvSendStarted
    | KvSendEnded
    | LifeEnded
    | WorkerTick
)
