"""The units of work that travel from scheduler to workers, and the small facts that come back.

Positions are generated-relative: 0 is the first generated token; block i covers [i*B, (i+1)*B) for block length B.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.core.ids import BlockAttempt, RequestId, WorkerLife
from common.core.params import CacheMode, SamplingParams


class FinishReason(enum.Enum):
    """Why a request's text ended."""

    STOP = "stop"
    LENGTH = "length"


class WaitReason(enum.Enum):
    """Why no live worker can take a request's block."""

    NO_WORKER = "no_worker"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """What the gateway asks the scheduler for; immutable for the life of the request.

    `committed_token_ids` are whole blocks finished in an earlier life of the request (resume); `shown` are tokens of
    the next block that the client has already seen, as (position, token). `deadline_s` counts from submission. An
    `idle` request's blocks are placed only while no other request waits.
    """

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    block_length_tokens: int
    cache_mode: CacheMode
    sampling: SamplingParams
    ignore_eos: bool
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None
    committed_token_ids: tuple[int, ...] = ()
    shown: tuple[tuple[int, int], ...] = ()
    idle: bool = False

    @property
    def blocks(self) -> int:
        """Number of blocks in the generated part of the canvas."""
        return -(-self.max_tokens // self.block_length_tokens)

    @property
    def canvas_tokens(self) -> int:
        """Prompt plus generated positions, the latter rounded up to whole blocks."""
        return len(self.prompt_token_ids) + self.generated_tokens()

    def generated_tokens(self, max_gen_len_tokens: int = 0) -> int:
        """Generated positions of the canvas, whole blocks; `max_gen_len_tokens` above 0 fixes them."""
        length = self.block_length_tokens
        return -(-max(self.max_tokens, max_gen_len_tokens) // length) * length

    def pages(self, page_size_tokens: int) -> int:
        """KV pages that hold the whole canvas."""
        return -(-self.canvas_tokens // page_size_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One block of one request, as a worker receives it.

    `generated_token_ids` holds every earlier block in full (length = attempt.block * block_length_tokens).
    `canvas_generated_tokens` is the generated part of the canvas (0: max_tokens rounded up to whole blocks).
    """

    attempt: BlockAttempt
    prompt_token_ids: tuple[int, ...]
    generated_token_ids: tuple[int, ...]
    max_tokens: int
    block_length_tokens: int
    cache_mode: CacheMode
    sampling: SamplingParams
    ignore_eos: bool
    canvas_generated_tokens: int = 0

    @property
    def canvas_tokens(self) -> int:
        """Prompt plus generated positions, the latter rounded up to whole blocks."""
        blocks = -(-max(self.max_tokens, self.canvas_generated_tokens) // self.block_length_tokens)
        return len(self.prompt_token_ids) + blocks * self.block_length_tokens

    @property
    def block_start_position(self) -> int:
        """First generated-relative position of the block."""
        return self.attempt.block * self.block_length_tokens

    def pages(self, page_size_tokens: int) -> int:
        """KV pages that hold the whole canvas."""
        return -(-self.canvas_tokens // page_size_tokens)

    def decode_step_tokens(self, query_lookback_tokens: int = 0) -> int:
        """Query tokens of one decode step (what it costs of the token budget), by cache mode.

        The lookback row that shifted models need is not counted: the budget speaks of block tokens (Algorithm 1).
        """
        if self.cache_mode is CacheMode.DUAL:
            return self.block_length_tokens
        if self.cache_mode is CacheMode.PREFIX:
            return self.canvas_tokens - len(self.prompt_token_ids) - self.block_start_position
        return self.canvas_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDelta:
    """What one forward revealed for one block: parallel tuples, positions ascending. Step 0 is the prefill's own."""

    step: int
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCompletion:
    """A block has no masked position left that matters. `finish` is set when the request ends with it."""

    prefill_forwards: int
    decode_forwards: int
    finish: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHandle:
    """Where the K/V of a prefilled canvas lies, and until when (lease is relative, from the moment of receipt)."""

    attempt: BlockAttempt
    owner: WorkerLife
    transport: str
    address: str
    layout_fingerprint: str
    canvas_tokens: int
    pages: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """What it took to bring a canvas' K/V to a decode worker.

    `transfer_s` is the whole fetch, `exposed_s` the part of it that the prefill did not hide: all of it when the fetch
    began after the prefill, else what came after the last layer was computed. `transfer_bytes` is payload only.
    """

    transfer_s: float
    exposed_s: float
    transfer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPrefill:
    """Decode source: the decode worker runs the block's prefill itself (colocated, overflow)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKv:
    """Decode source: pages to fetch from the prefill worker; `first` is what the prefill's own step revealed.

    `first` None: the prefill has yet to end. Each layer is fetched once it is computed; `first` comes with the last.
    """

    handle: KvHandle
    first: StepDelta | None

    @property
    def early(self) -> bool:
        """Whether the prefill has yet to end."""
        return self.first is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoKv:
    """Decode source: cache mode `none` needs no K/V; `first` is what the prefill's own step revealed."""

    first: StepDelta


KvSource = LocalPrefill | RemoteKv | NoKv


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """What a worker says of its newest iteration and of itself; feeds the scheduler's mirrored ledger and status.

    `token_budget_tokens` is tau in force after the iteration (0: not said), `token_budget_adapts` whether the worker
    sets it itself. `decode_gap_s` is the smoothed time between two steps of a decode. A worker that sets its budget
    itself says how many blocks it wants to have at once (0: not yet known), and how many prefill tokens beside another
    prefill's.
    """

    iteration: int
    duration_s: float
    decode_tokens: int
    prefill_tokens_admitted: int
    deficit_tokens: int
    free_pages: int
    active_decodes: int
    queued_prefills: int
    queued_prefill_tokens: int
    retained_blocks: int
    token_budget_tokens: int = 0
    token_budget_adapts: bool = False
    decode_gap_s: float = 0.0
    wanted_blocks: int = 0
    wanted_prefill_tokens: int = 0
