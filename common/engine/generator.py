"""Whole requests in this process: the block cycle without services (debugging, goldens, benchmarks, evaluation)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from common.core.ids import BlockAttempt
from common.core.page_pool import PagePool
from common.core.work import RequestSpec, StepDelta
from common.engine.engine import Engine
from common.engine.request_run import GenerationResult, RequestRun, check_request

__all__ = ["BatchGenerator", "GenerationResult", "LocalGenerator"]


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
        check_request(self._engine, spec)
        run = RequestRun(self._engine, spec, range(self._engine.pool.pages_for(spec.canvas_tokens)))
        while run.result is None:
            (step,) = self._engine.step([run.state])
            run.take(step)
            yield step.delta
        yield run.result


class BatchGenerator:
    """Runs many requests together, one packed forward over all that are open; one that ends makes room for the next.

    Each result is the one `LocalGenerator` gives. Owns the engine's whole pool while it runs.
    """

    def __init__(self, engine: Engine, *, max_batch_size: int) -> None:
        assert max_batch_size >= 1, max_batch_size
        self._engine = engine
        self._max_batch_size = max_batch_size

    def generate(self, specs: Sequence[RequestSpec]) -> Iterator[tuple[RequestSpec, GenerationResult]]:
        """Yield every request with its result as they end; request ids must differ.

        Raises what `LocalGenerator.generate` raises, of any of them before any compute, on first use.
        """
        for spec in specs:
            check_request(self._engine, spec)
        waiting, running = deque(specs), list[RequestRun]()
        pages = PagePool(self._engine.pool.num_pages)
        while waiting or running:
            self._admit(waiting, running, pages)
            active = [run for run in running if run.result is None]
            steps = self._engine.step([run.state for run in active])
            for run, step in zip(active, steps, strict=True):
                run.take(step)
            for run in running:
                if run.result is not None:
                    pages.release(_owner(run.spec))
                    yield run.spec, run.result
            running = [run for run in running if run.result is None]

    def _admit(self, waiting: deque[RequestSpec], running: list[RequestRun], pages: PagePool) -> None:
        """Open requests in order while the batch and the pool have room for the next."""
        while waiting and len(running) < self._max_batch_size:
            needed = self._engine.pool.pages_for(waiting[0].canvas_tokens)
            page_ids = pages.allocate(_owner(waiting[0]), needed)
            if page_ids is None:
                return
            running.append(RequestRun(self._engine, waiting.popleft(), page_ids))


def _owner(spec: RequestSpec) -> BlockAttempt:
    """Under what name a request holds its pages: one for all its blocks."""
    return BlockAttempt(spec.request_id, 0, 0)
