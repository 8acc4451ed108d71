"""Where Prefill and Decode calls come in: refused here, or turned into a core event with an outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.core.ids import WorkerLife
from common.core.kv_layout import KvLayout
from common.core.worker_events import DecodeRequested, PrefillRequested, WorkCancelled
from common.errors import Reason, WireError
from common.model_config import ModelConfig
from common.worker.calls import CallOutbox, CallTable
from common.worker.core_loop import CoreLoop
from common.worker.work_checks import check_source, check_work


class Reception:
    """Takes calls for this worker's present life. Event loop only.

    `life` answers which life that is; events go to `core`.
    """

    def __init__(
        self,
        *,
        calls: CallTable,
        model: ModelConfig,
        layout: KvLayout,
        readable: frozenset[str],
        life: Callable[[], WorkerLife],
        core: CoreLoop,
    ) -> None:
        self._calls = calls
        self._model = model
        self._layout = layout
        self._readable = readable
        self._life = life
        self._core = core
        self._draining = False

    def close(self) -> None:
        """Refuse new work from now on (`WORKER_DRAINING`)."""
        self._draining = True

    @contextmanager
    def accept(self, event: PrefillRequested | DecodeRequested, *, target_incarnation: int) -> Iterator[CallOutbox]:
        """Start the work of one call; leaving the block by an exception cancels it, if the core had taken it.

        Raises `WireError` when the call is for another life, the worker drains, or the work cannot run here.
        """
        self._check(event, target_incarnation)
        with self._calls.open(event.work) as outbox:
            self._core.request(event)
            # Ended already: refused. What is here for that attempt then belongs to an earlier call.
            taken = not outbox.ended
            try:
                yield outbox
            except BaseException:
                # The answer did not get out, whatever became of the work: nobody will come for its K/V.
                if taken:
                    self._core.feed(WorkCancelled(attempt=event.work.attempt))
                raise

    def _check(self, event: PrefillRequested | DecodeRequested, target_incarnation: int) -> None:
        life = self._life()
        if target_incarnation != life.incarnation:
            raise WireError(Reason.STALE_INCARNATION, f"{life.worker_id} lives its life {life.incarnation}")
        if self._draining:
            raise WireError(Reason.WORKER_DRAINING, f"{life.worker_id} takes no new work")
        check_work(event.work, self._model)
        if isinstance(event, DecodeRequested):
            check_source(event.work, event.source, layout=self._layout, readable=self._readable, model=self._model)
