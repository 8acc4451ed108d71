"""One block attempt inside a worker, from the call's arrival to its last page."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.core.block import BlockProgress
from common.core.ids import BlockAttempt
from common.core.work import BlockCompletion, BlockWork, KvSource, LocalPrefill, RemoteKv, StepDelta
from common.core.worker_effects import FetchKv


class Stage(enum.Enum):
    """Where a block stands. Retained K/V is not a stage: `KvRetention` has it then.

    ZOMBIE: cancelled, but a forward or a fetch may still touch its pages; its outcome is dropped.
    """

    QUEUED = "queued"
    WAITING_PAGES = "waiting_pages"
    FETCHING = "fetching"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ZOMBIE = "zombie"


LEGAL: dict[Stage, frozenset[Stage]] = {
    Stage.QUEUED: frozenset({Stage.PREFILLING}),
    Stage.WAITING_PAGES: frozenset({Stage.FETCHING, Stage.DECODING}),
    Stage.FETCHING: frozenset({Stage.DECODING, Stage.ZOMBIE}),
    Stage.PREFILLING: frozenset({Stage.DECODING, Stage.ZOMBIE}),
    Stage.DECODING: frozenset({Stage.ZOMBIE}),
    Stage.ZOMBIE: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class WorkerBlock:
    """`arrival` orders blocks by the arrival of their calls; `source` is None for a Prefill call.

    `attempt`, `canvas_tokens` and `decode_step_tokens` are those of `work`, which never change: asked for in every
    iteration. `pages_awaited_since_s`: since when this block has waited for memory alone; None when it has not.
    """

    work: BlockWork
    attempt: BlockAttempt
    canvas_tokens: int
    decode_step_tokens: int
    source: KvSource | None
    arrival: int
    stage: Stage
    progress: BlockProgress
    pages: int
    pages_awaited_since_s: float | None = None
    opened: bool = False
    in_forward: bool = False
    decode_forwards: int = 0

    @classmethod
    def arriving(
        cls,
        work: BlockWork,
        source: KvSource | None,
        *,
        arrival: int,
        page_size_tokens: int,
        eos_token_id: int | None,
        now: float,
    ) -> WorkerBlock:
        """A block at the moment of its call; one that runs its own prefill queues, any other waits for pages."""
        pages = work.pages(page_size_tokens)
        if isinstance(source, RemoteKv):
            assert (source.handle.attempt, source.handle.pages) == (work.attempt, pages), source.handle
        runs_prefill = source is None or isinstance(source, LocalPrefill)
        progress = BlockProgress(
            block_start_position=work.block_start_position,
            block_length_tokens=work.block_length_tokens,
            cut_position=work.max_tokens,
            eos_token_id=eos_token_id,
            ignore_eos=work.ignore_eos,
        )
        return cls(
            work=work,
            attempt=work.attempt,
            canvas_tokens=work.canvas_tokens,
            decode_step_tokens=work.decode_step_tokens(),
            source=source,
            arrival=arrival,
            stage=Stage.QUEUED if runs_prefill else Stage.WAITING_PAGES,
            progress=progress,
            pages=pages,
            pages_awaited_since_s=None if runs_prefill else now,
        )

    @property
    def completion(self) -> BlockCompletion | None:
        """What to tell the caller when no masked position is left that matters; None before."""
        if not self.progress.complete:
            return None
        return BlockCompletion(prefill_forwards=1, decode_forwards=self.decode_forwards, finish=self.progress.finish)

    def fetch_into(self, page_ids: tuple[int, ...]) -> FetchKv:
        """What brings its K/V from the prefill worker."""
        assert isinstance(self.source, RemoteKv), self.source
        return FetchKv(attempt=self.attempt, handle=self.source.handle, page_ids=page_ids, early=self.source.early)

    def move_to(self, stage: Stage) -> None:
        """Enter `stage`, which must be legal from here."""
        assert stage in LEGAL[self.stage], f"{self.attempt}: {self.stage} -> {stage}"
        self.stage = stage

    def note_page_wait(self, waits: bool, now: float) -> None:
        """Say whether memory alone stops this block now."""
        if not waits:
            self.pages_awaited_since_s = None
        elif self.pages_awaited_since_s is None:
            self.pages_awaited_since_s = now

    def reveal(self, delta: StepDelta) -> None:
        """Count one forward's outcome."""
        self.progress.reveal(delta.positions, delta.token_ids)
        self.decode_forwards += delta.step > 0
