"""Running ahead: the prefill of a request's next block begins before anybody has asked for it.

When a block is complete its worker tells the scheduler and waits for the next call, and mostly that is for the next
block of the same request. A worker with nothing else to do computes that block's prefill meanwhile, in a small pool of
its own. If the call comes, the forward it asks for has been made; if another comes, nothing has happened. The core
knows nothing of this: tokens, pages and batches are the same with it and without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.core.block import BlockProgress
from common.core.ids import BlockAttempt
from common.core.params import CacheMode
from common.core.work import BlockWork, StepDelta
from common.core.worker_effects import OpenBlock
from common.engine.engine import BlockState, Engine
from common.metrics import catalogue as metrics
from common.worker.forward_engine import open_block
from common.worker.pool_size import run_ahead_pages

MOST_LEFT_ALONE = 64
"""Chances that are left alone, at most, between two that are taken, while guesses prove wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadForward:
    """A prefill that nobody had asked for, made in `duration_s` seconds: what it revealed, and the block after it."""

    work: BlockWork
    delta: StepDelta
    state: BlockState
    duration_s: float


class RunAhead:
    """Computes prefills ahead of their calls, one at a time, and keeps the newest until its call comes.

    Forward thread only. A chance is a complete block, not its request's last, of a worker that has nothing else:
    `is_alone` says so. A guess is wrong when its request goes on otherwise, or has not been asked for when the next
    chance comes; then 1, 2, 4 ... 64 chances are left alone. One that is right ends that.
    """

    def __init__(self, engine: Engine, *, limit_tokens: int, is_alone: Callable[[BlockAttempt], bool]) -> None:
        """Take memory for canvases of up to `limit_tokens`; raises `ConfigError` when the device has no room for it."""
        self._engine = engine
        self._limit_tokens = limit_tokens
        self._is_alone = is_alone
        page_size_tokens = engine.layout.page_size_tokens
        pages = run_ahead_pages(limit_tokens, model=engine.config, page_size_tokens=page_size_tokens)
        self._twin = engine.twin(num_pages=pages)
        self._kept: AheadForward | None = None
        self._wrong_in_a_row = 0
        self._left_alone = 0
        for counter in (metrics.AHEAD_FORWARDS_USED, metrics.AHEAD_FORWARDS_DISCARDED):
            counter.add(0)

    def is_chance(self, attempt: BlockAttempt, state: BlockState) -> bool:
        """Whether a worker that has been given nothing new may go on behind `attempt`, whose forward has just ended."""
        return not state.masked and state.canvas_tokens <= self._limit_tokens and self._is_alone(attempt)

    def run(self, last: BlockWork, state: BlockState) -> None:
        """Compute the prefill of the block that follows `last`, whose `state` is complete; unless it is left alone."""
        work = self._following(last, state)
        if work is None:
            return
        if self._kept is not None:
            self._discard()
        if self._left_alone:
            self._left_alone -= 1
            return
        started_s = time.monotonic()
        page_ids = tuple(range(self._twin.pool.pages_for(work.canvas_tokens)))
        state = open_block(self._twin, OpenBlock(work=work, page_ids=page_ids, first=None))
        (result,) = self._twin.step([state])
        self._kept = AheadForward(work=work, delta=result.delta, state=state, duration_s=time.monotonic() - started_s)

    def take(self, opened: OpenBlock) -> AheadForward | None:
        """The first forward of the block that is `opened`, if it is there, as if it had been made for that call.

        What a further step needs lies in the pages of `opened` then (or is on its way there, as a forward's K/V).
        """
        kept, work = self._kept, opened.work
        if kept is None or work.attempt.request_id != kept.work.attempt.request_id:
            return None
        if opened.first is not None or not _is_same(work, kept.work):
            self._discard()
            return None
        self._kept = None
        self._wrong_in_a_row = 0
        metrics.AHEAD_FORWARDS_USED.add()
        return replace(kept, work=work, state=self._moved(kept, opened))

    def _moved(self, kept: AheadForward, opened: OpenBlock) -> BlockState:
        """The block's state where it belongs. One without a next step needs no place."""
        if not kept.state.masked:
            return kept.state
        state = open_block(self._engine, replace(opened, first=kept.delta))
        if kept.work.cache_mode is not CacheMode.NONE:
            self._engine.copy_kv(self._twin, kept.state, state)
        return state

    def _discard(self) -> None:
        self._kept = None
        self._wrong_in_a_row = self._left_alone = min(max(1, 2 * self._wrong_in_a_row), MOST_LEFT_ALONE)
        metrics.AHEAD_FORWARDS_DISCARDED.add()

    def _following(self, last: BlockWork, state: BlockState) -> BlockWork | None:
        """The next block, as the scheduler will ask for it but for the number of the attempt; None after the last."""
        progress = BlockProgress(
            block_start_position=last.block_start_position,
            block_length_tokens=last.block_length_tokens,
            cut_position=last.max_tokens,
            eos_token_id=self._engine.config.eos_token_id,
            ignore_eos=last.ignore_eos,
        )
        token_ids = state.canvas[state.block_start : state.block_end].tolist()
        first = last.block_start_position
        progress.reveal(range(first, first + last.block_length_tokens), token_ids)
        if progress.finish is not None:
            return None
        attempt = replace(last.attempt, block=last.attempt.block + 1)
        return replace(last, attempt=attempt, generated_token_ids=(*last.generated_token_ids, *token_ids))


def _is_same(asked_for: BlockWork, guessed: BlockWork) -> bool:
    """Whether both are the same in everything that tokens depend on: in all but the number of the attempt."""
    attempt = replace(guessed.attempt, attempt=asked_for.attempt.attempt)
    return asked_for == replace(guessed, attempt=attempt)
