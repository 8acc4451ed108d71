"""The part of the engine that forwards take, and how a block is opened in it as the core wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from common.core.ids import BlockAttempt
from common.core.params import CacheMode, SamplingParams
from common.core.worker_effects import OpenBlock
from common.engine.engine import BlockState, StepResult


class ForwardEngine(Protocol):
    """The part of `common.engine.engine.Engine` that forwards take."""

    def open_block(
        self,
        *,
        attempt: BlockAttempt,
        prompt_token_ids: Sequence[int],
        generated_token_ids: Sequence[int],
        canvas_tokens: int,
        block_length_tokens: int,
        block: int,
        cache_mode: CacheMode,
        sampling: SamplingParams,
        page_ids: Sequence[int],
        revealed: Mapping[int, int],
        next_step: int,
    ) -> BlockState:
        """Build the state of one block; see `Engine.open_block`."""

    def step(self, items: Sequence[BlockState], *, on_layer: Callable[[int], None] | None = None) -> list[StepResult]:
        """Run one packed forward; see `Engine.step`."""


def open_block(engine: ForwardEngine, change: OpenBlock) -> BlockState:
    """The state of the block that `change` opens."""
    work, first = change.work, change.first
    return engine.open_block(
        attempt=work.attempt,
        prompt_token_ids=work.prompt_token_ids,
        generated_token_ids=work.generated_token_ids,
        canvas_tokens=work.canvas_tokens,
        block_length_tokens=work.block_length_tokens,
        block=work.attempt.block,
        cache_mode=work.cache_mode,
        sampling=work.sampling,
        page_ids=change.page_ids,
        revealed={} if first is None else dict(zip(first.positions, first.token_ids, strict=True)),
        next_step=0 if first is None else first.step + 1,
    )
