"""One request on one engine, step by step: opens its blocks one after the other and counts its forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.core.block import BlockProgress
from common.core.ids import BlockAttempt
from common.core.work import FinishReason, RequestSpec
from common.engine.batch import BlockState
from common.engine.engine import Engine, StepResult
from common.errors import InvalidRequest, TooLong


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A finished request: `token_ids` are the generated ones, cut to max_tokens, up to and including the first EOS.

    `revealed_tokens` counts the positions that the forwards revealed, those behind the EOS or the cut included.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prefill_forwards: int
    decode_forwards: int
    revealed_tokens: int


class RequestRun:
    """A request and its open block: `state` goes into `Engine.step`, what came of it into `take`."""

    def __init__(self, engine: Engine, spec: RequestSpec, page_ids: Sequence[int]) -> None:
        """Open the first block. `page_ids` hold the whole canvas and stay the caller's; `spec` has been checked."""
        self.spec = spec
        self.result: GenerationResult | None = None
        self._engine = engine
        self._page_ids = page_ids
        self._generated = list(spec.committed_token_ids)
        self._forwards = {True: 0, False: 0}
        self._revealed_tokens = 0
        self.state, self._progress = self._open()
        self._advance()

    def take(self, step: StepResult) -> None:
        """Record what a forward revealed; opens the next block, or sets `result`, when that completes the block."""
        self._forwards[step.is_prefill] += 1
        self._revealed_tokens += len(step.positions)
        self._progress.reveal(step.positions, step.tokens)
        self._advance()

    def _advance(self) -> None:
        """Go on while blocks are complete: tokens already shown may fill one without any forward."""
        while self.result is None and self._progress.complete:
            self._generated.extend(self._progress.output_token_ids)
            if self._progress.finish is None:
                self.state, self._progress = self._open()
            else:
                self.result = self._finished(self._progress.finish)

    def _finished(self, reason: FinishReason) -> GenerationResult:
        return GenerationResult(
            token_ids=tuple(self._generated),
            finish_reason=reason,
            prefill_forwards=self._forwards[True],
            decode_forwards=self._forwards[False],
            revealed_tokens=self._revealed_tokens,
        )

    def _open(self) -> tuple[BlockState, BlockProgress]:
        """State and progress of the block that follows what is generated; the first may have tokens already shown."""
        spec, generated = self.spec, self._generated
        block, rest = divmod(len(generated), spec.block_length_tokens)
        assert rest == 0, f"{spec.request_id}: {len(generated)} tokens are no whole blocks"
        shown = dict(spec.shown) if len(generated) == len(spec.committed_token_ids) else {}
        state = self._engine.open_block(
            attempt=BlockAttempt(spec.request_id, block, 0),
            prompt_token_ids=spec.prompt_token_ids,
            generated_token_ids=generated,
            canvas_tokens=spec.canvas_tokens,
            block_length_tokens=spec.block_length_tokens,
            block=block,
            cache_mode=spec.cache_mode,
            sampling=spec.sampling,
            page_ids=self._page_ids,
            revealed=shown,
        )
        progress = BlockProgress(
            block_start_position=block * spec.block_length_tokens,
            block_length_tokens=spec.block_length_tokens,
            cut_position=spec.max_tokens,
            eos_token_id=self._engine.config.eos_token_id,
            ignore_eos=spec.ignore_eos,
        )
        progress.reveal(list(shown), list(shown.values()))
        return state, progress


def check_request(engine: Engine, spec: RequestSpec) -> None:
    """Refuse what the engine cannot run: raises `InvalidPrompt`, `InvalidRequest`, `BadSamplingParams`, `TooLong`."""
    config, pool = engine.config, engine.pool
    config.check_prompt(spec.prompt_token_ids)
    if spec.max_tokens < 1:
        raise InvalidRequest("max_tokens", f"must be at least 1, not {spec.max_tokens}")
    if spec.block_length_tokens < 1:
        raise InvalidRequest("block_length_tokens", f"must be at least 1, not {spec.block_length_tokens}")
    spec.sampling.validate()
    limit_tokens = min(config.max_canvas_tokens, pool.num_pages * pool.layout.page_size_tokens)
    if spec.canvas_tokens > limit_tokens:
        raise TooLong("max_tokens", f"prompt and blocks need {spec.canvas_tokens} positions, limit {limit_tokens}")
