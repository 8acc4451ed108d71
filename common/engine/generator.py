"""A whole request in this process: the block cycle without services (debugging, goldens, benchmarks)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.core.block import BlockProgress
from common.core.ids import BlockAttempt
from common.core.work import FinishReason, RequestSpec, StepDelta
from common.engine.batch import BlockState
from common.engine.engine import Engine
from common.errors import InvalidRequest, TooLong


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A finished request: `token_ids` are the generated ones, cut to max_tokens, up to and including the first EOS."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prefill_forwards: int
    decode_forwards: int


class LocalGenerator:
    """Runs requests one after the other on the first pages of an engine's pool."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, spec: RequestSpec) -> GenerationResult:
        """Generate to the end; raises what `generate` raises."""
        *_, result = self.generate(spec)
        assert isinstance(result, GenerationResult)
        return result

    def generate(self, spec: RequestSpec) -> Iterator[StepDelta | GenerationResult]:
        """Yield a delta for each forward, then the result.

        Raises `InvalidPrompt`, `InvalidRequest`, `BadSamplingParams` or `TooLong` before any compute, on first use.
        """
        self._check(spec)
        generated = list(spec.committed_token_ids)
        forwards = {True: 0, False: 0}
        finish: FinishReason | None = None
        while finish is None:
            state, progress = self._open(spec, generated)
            while not progress.complete:
                (result,) = self._engine.step([state])
                forwards[result.is_prefill] += 1
                progress.reveal(result.positions, result.tokens)
                yield result.delta
            generated.extend(progress.output_token_ids)
            finish = progress.finish
        yield GenerationResult(
            token_ids=tuple(generated),
            finish_reason=finish,
            prefill_forwards=forwards[True],
            decode_forwards=forwards[False],
        )

    def _check(self, spec: RequestSpec) -> None:
        config, pool = self._engine.config, self._engine.pool
        config.check_prompt(spec.prompt_token_ids)
        if spec.max_tokens < 1:
            raise InvalidRequest("max_tokens", f"must be at least 1, not {spec.max_tokens}")
        if spec.block_length_tokens < 1:
            raise InvalidRequest("block_length_tokens", f"must be at least 1, not {spec.block_length_tokens}")
        spec.sampling.validate()
        limit_tokens = min(config.max_canvas_tokens, pool.num_pages * pool.layout.page_size_tokens)
        if spec.canvas_tokens > limit_tokens:
            raise TooLong("max_tokens", f"prompt and blocks need {spec.canvas_tokens} positions, limit {limit_tokens}")

    def _open(self, spec: RequestSpec, generated: list[int]) -> tuple[BlockState, BlockProgress]:
        """State and progress of the block that follows `generated`; the first may have tokens already shown."""
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
            page_ids=range(self._engine.pool.pages_for(spec.canvas_tokens)),
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
