"""The one thread that touches the engine's compute. Jobs go in, iteration outcomes come out.

A forward takes milliseconds to seconds; run inside a coroutine it would hold up every RPC and health probe.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.core.ids import BlockAttempt
from common.core.params import CacheMode, SamplingParams
from common.core.worker_effects import CloseBlock, OpenBlock, RunIteration
from common.core.worker_events import IterationCompleted
from common.engine.engine import BlockState, StepResult
from common.worker.forward_watch import ForwardStuck
from common.worker.kv_staging import Fence

JOIN_TIMEOUT_S = 30.0
"""Longest wait for a forward that is still running when the process wants to end."""


LAYERS_INTERVAL_S = 0.005
"""Least time between two words about layers: less of a forward is read as fast when it has ended, and each word takes
the interpreter from the forward, and wakes two event loops."""


class ForwardEngine(Protocol):
    """The part of `common.engine.engine.Engine` that the forward thread calls."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardJob:
    """One iteration, and the blocks to open and close (in that order of events) before it runs."""

    changes: tuple[OpenBlock | CloseBlock, ...]
    run: RunIteration


class ForwardThread:
    """Owns the engine's block states and runs one `ForwardJob` at a time.

    `complete` is called on the thread itself with each outcome and answers the job to run next (None: wait for
    `submit`). `on_failed` and `on_layer` are called on the event loop; the latter with the prefills of the batch, the
    layer up to which K/V is in the pool, and what `fence` returned for it on this thread. Where that is None, so that
    the layer is computed already, at most once per `LAYERS_INTERVAL_S`: the forward's end tells the rest. Nothing is
    told while nobody `wants_layers` (asked on this thread); what is told next holds for all before it. A forward or a
    `complete` that raises is a bug of this process: `on_failed` is called once and the thread ends.
    """

    def __init__(
        self,
        engine: ForwardEngine,
        *,
        complete: Callable[[IterationCompleted], ForwardJob | None],
        on_failed: Callable[[BaseException], None],
        fence: Callable[[], Fence] = lambda: None,
        on_layer: Callable[[Sequence[BlockAttempt], int, Fence], None] | None = None,
        wants_layers: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._fence = fence
        self._on_layer = on_layer
        self._wants_layers = wants_layers
        self._complete = complete
        self._on_failed = on_failed
        # One hand-over of the interpreter wakes its reader; a `Queue` takes one for each of its locks.
        self._jobs: queue.SimpleQueue[ForwardJob | None] = queue.SimpleQueue()
        self._states: dict[BlockAttempt, BlockState] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)

    @property
    def running_since_s(self) -> float | None:
        """When the running forward began, on `time.monotonic`; None while none runs. Any thread may ask."""
        return self._running_since_s

    def start(self) -> None:
        """Start the thread; outcomes go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, job: ForwardJob) -> None:
        """Queue a job; never blocks. One that waits already is a bug: the core keeps one iteration in flight."""
        assert self._jobs.empty(), "one forward at a time"
        self._jobs.put_nowait(job)

    async def close(self, *, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Finish the job in hand and join the thread. Raises `ForwardStuck` when that takes longer than `timeout_s`."""
        if self._loop is None:
            return
        self._jobs.put_nowait(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            raise ForwardStuck(f"a forward did not end within {timeout_s:g} s of the worker's own end")

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                while job is not None:
                    job = self._complete(self._execute(job))
        except BaseException as error:
            self._post(self._on_failed, error)

    def _post(self, callback: Callable[..., None], *values: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            # The loop has closed: nobody is left to hear of it.
            assert self._loop.is_closed()

    def _execute(self, job: ForwardJob) -> IterationCompleted:
        started = self._running_since_s = time.monotonic()
        for change in job.changes:
            self._apply(change)
        attempts = job.run.decodes + job.run.prefills
        states = [self._states[attempt] for attempt in attempts]
        results = self._engine.step(states, on_layer=self._layer_hook(job.run))
        assert len(results) == len(attempts), "the engine answers every item"
        self._running_since_s = None
        return IterationCompleted(
            iteration=job.run.iteration,
            deltas=tuple((attempt, result.delta) for attempt, result in zip(attempts, results, strict=True)),
            duration_s=time.monotonic() - started,
        )

    def _layer_hook(self, run: RunIteration) -> Callable[[int], None] | None:
        """What the engine calls after each layer of a batch with prefills, if anybody wants to know."""
        on_layer = self._on_layer
        if on_layer is None or not run.prefills:
            return None
        told_at_s = time.monotonic()

        def computed(layer: int) -> None:
            nonlocal told_at_s
            if not self._wants_layers():
                return
            fence, now_s = self._fence(), time.monotonic()
            # A device is still at it, and how long it takes nobody knows.
            if fence is not None or now_s - told_at_s >= LAYERS_INTERVAL_S:
                told_at_s = now_s
                self._post(on_layer, run.prefills, layer, fence)

        return computed

    def _apply(self, change: OpenBlock | CloseBlock) -> None:
        if isinstance(change, CloseBlock):
            del self._states[change.attempt]
            return
        work, first = change.work, change.first
        assert work.attempt not in self._states, f"{work.attempt} is open already"
        self._states[work.attempt] = self._engine.open_block(
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
