"""What a `WorkerCore` asks its shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.work import BlockCompletion, BlockWork, IterationReport, KvHandle, KvTransfer, StepDelta
from common.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBlock:
    """Make the engine's state for an attempt on these pages, with `first` already revealed (None: step 0 is to run)."""

    work: BlockWork
    page_ids: tuple[int, ...]
    first: StepDelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseBlock:
    """Forget the engine's state of that attempt."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIteration:
    """One packed forward over these attempts: decodes first, then whole prefills. Outcome: IterationCompleted."""

    iteration: int
    decodes: tuple[BlockAttempt, ...]
    prefills: tuple[BlockAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchKv:
    """Pull the handle's pages into `page_ids`. Outcome: KvFetched or KvFetchFailed, also after AbortFetch.

    `early`: the prefill has yet to end, or even to begin; KvFetched then says what its own step revealed.
    """

    attempt: BlockAttempt
    handle: KvHandle
    page_ids: tuple[int, ...]
    early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortFetch:
    """Stop that fetch; KvFetchFailed follows when its pages are no longer being written."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainKv:
    """Offer these pages to the data plane and publish them to the registry, for `lease_s` seconds."""

    attempt: BlockAttempt
    page_ids: tuple[int, ...]
    canvas_tokens: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetKv:
    """Withdraw the offer and the registry entry; abort a send in progress (KvSendEnded follows it)."""

    attempt: BlockAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SendKvReceived:
    """Tell the Decode caller that the pages are here; `first` is what the prefill revealed, if it did not say so."""

    attempt: BlockAttempt
    transfer: KvTransfer
    first: StepDelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStep:
    """Tell the Decode caller what a forward revealed."""

    attempt: BlockAttempt
    step: StepDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPrefillResult:
    """Answer the Prefill call. `retained` says whether K/V is kept under lease for a decode worker."""

    attempt: BlockAttempt
    first: StepDelta
    completion: BlockCompletion | None
    retained: bool
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCompletion:
    """Tell the Decode caller that its block is complete, and end the call."""

    attempt: BlockAttempt
    completion: BlockCompletion


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailure:
    """End the call for this attempt with that reason."""

    attempt: BlockAttempt
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the heartbeat should say next."""

    report: IterationReport


WorkerEffect = (
    OpenBlock
    | CloseBlock
    | RunIteration
    | FetchKv
    | AbortFetch
    | RetainKv
    | ForgetKv
    | SendKvReceived
    | SendStep
    | SendPrefillResult
    | SendCompletion
    | SendFailure
    | Report
)
