"""The one thread that touches the engine's compute. Jobs go in, iteration outcomes come out.

A forward takes milliseconds to seconds; run inside a coroutine it would hold up every RPC and health probe.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.worker_effects import CloseBlock, OpenBlock, RunIteration
from common.core.worker_events import IterationCompleted
from common.engine.engine import BlockState
from common.worker.forward_engine import ForwardEngine, open_block
from common.worker.forward_watch import ForwardStuck
from common.worker.kv_staging import Fence
from common.worker.run_ahead import AheadForward, RunAhead

JOIN_TIMEOUT_S = 30.0
"""Longest wait for a forward that is still running when the process wants to end."""


LAYERS_INTERVAL_S = 0.005
"""Least time between two words about layers: less of a forward is read as fast when it has ended, and each word takes
the interpreter from the forward, and wakes two event loops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardJob:
    """One iteration, and the blocks to open and close (in that order of events) before it runs."""

    changes: tuple[OpenBlock | CloseBlock, ...]
    run: RunIteration


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """An open block, and how it was opened."""

    opened: OpenBlock
    state: BlockState


class ForwardThread:
    """Owns the engine's block states and runs one `ForwardJob` at a time.

    `complete` is called on the thread itself with each outcome and answers the job to run next (None: wait for
    `submit`). `on_failed` and `on_layer` are called on the event loop; the latter with the prefills of the batch, the
    layer up to which K/V is in the pool, and what `fence` returned for it on this thread. Where that is None, so that
    the layer is computed already, at most once per `LAYERS_INTERVAL_S`: the forward's end tells the rest. Nothing is
    told while nobody `wants_layers` (asked on this thread); what is told next holds for all before it. A forward or a
    `complete` that raises is a bug of this process: `on_failed` is called once and the thread ends.

    With `run_ahead` it does not wait for the next job, but begins with what that will most likely ask for. A job that
    does so finds the prefill done: its batch runs without it, and its outcome says how long it took when it ran.
    """

    def __init__(
        self,
        engine: ForwardEngine,
        *,
        complete: Callable[[IterationCompleted], ForwardJob | None],
        on_failed: Callable[[BaseException], None],
        run_ahead: RunAhead | None = None,
        fence: Callable[[], Fence] = lambda: None,
        on_layer: Callable[[Sequence[BlockAttempt], int, Fence], None] | None = None,
        wants_layers: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._ahead = run_ahead
        self._fence = fence
        self._on_layer = on_layer
        self._wants_layers = wants_layers
        self._complete = complete
        self._on_failed = on_failed
        # One hand-over of the interpreter wakes its reader; a `Queue` takes one for each of its locks.
        self._jobs: queue.SimpleQueue[ForwardJob | None] = queue.SimpleQueue()
        self._blocks: dict[BlockAttempt, _Block] = {}
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
                    outcome = self._execute(job)
                    last = self._alone(outcome)
                    job = self._complete(outcome)
                if last is not None:
                    self._run_ahead(last)
        except BaseException as error:
            self._post(self._on_failed, error)

    def _post(self, callback: Callable[..., None], *values: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            # The loop has closed: nobody is left to hear of it.
            assert self._loop.is_closed()

    def _alone(self, outcome: IterationCompleted) -> _Block | None:
        """The block that `outcome` is about, if it is all that this worker has, and was prefilled here."""
        if self._ahead is None or len(outcome.deltas) > 1:
            return None
        ((attempt, _),) = outcome.deltas
        block = self._blocks[attempt]
        return block if block.opened.first is None and self._ahead.is_chance(attempt, block.state) else None

    def _run_ahead(self, last: _Block) -> None:
        assert self._ahead is not None
        self._running_since_s = time.monotonic()
        self._ahead.run(last.opened.work, last.state)
        self._running_since_s = None

    def _execute(self, job: ForwardJob) -> IterationCompleted:
        started_s = self._running_since_s = time.monotonic()
        ahead = [done for change in job.changes if (done := self._apply(change)) is not None]
        deltas = {done.work.attempt: done.delta for done in ahead}
        run, duration_s = job.run, sum(done.duration_s for done in ahead)
        attempts = [attempt for attempt in run.decodes + run.prefills if attempt not in deltas]
        if attempts:
            states = [self._blocks[attempt].state for attempt in attempts]
            prefills = [attempt for attempt in run.prefills if attempt not in deltas]
            results = self._engine.step(states, on_layer=self._layer_hook(prefills))
            deltas |= {attempt: result.delta for attempt, result in zip(attempts, results, strict=True)}
            duration_s += time.monotonic() - started_s
        self._running_since_s = None
        return IterationCompleted(
            iteration=run.iteration,
            deltas=tuple((attempt, deltas[attempt]) for attempt in run.decodes + run.prefills),
            duration_s=duration_s,
        )

    def _layer_hook(self, prefills: Sequence[BlockAttempt]) -> Callable[[int], None] | None:
        """What the engine calls after each layer of a batch with prefills, if anybody wants to know."""
        on_layer = self._on_layer
        if on_layer is None or not prefills:
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
                self._post(on_layer, prefills, layer, fence)

        return computed

    def _apply(self, change: OpenBlock | CloseBlock) -> AheadForward | None:
        """Open or close a block; returns the first forward of one that is opened, if that has run ahead."""
        if isinstance(change, CloseBlock):
            del self._blocks[change.attempt]
            return None
        attempt = change.work.attempt
        assert attempt not in self._blocks, f"{attempt} is open already"
        done = None if self._ahead is None else self._ahead.take(change)
        state = open_block(self._engine, change) if done is None else done.state
        self._blocks[attempt] = _Block(opened=change, state=state)
        return done
