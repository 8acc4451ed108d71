"""What a worker holds for nobody: its core's books, and its shell's memory against them."""

from __future__ import annotations

from collections.abc import Iterable

from common.core.ids import BlockAttempt
from common.core.unowned import Holding, Unowned
from common.worker.calls import CallTable
from common.worker.core_loop import CoreLoop
from common.worker.kv_serving import KvServing
from common.worker.retained_kv import RetainedKv


class UnownedOfWorker:
    """Compares what the parts of one worker remember. Event loop only."""

    def __init__(self, *, core: CoreLoop, calls: CallTable, retained: RetainedKv, serving: KvServing) -> None:
        self._core = core
        self._calls = calls
        self._retained = retained
        self._serving = serving

    def __call__(self) -> list[Unowned]:
        """What is held for nobody at this moment, or seems to be while an end is still on its way."""
        core = self._core.holdings()
        return [
            *core.unowned,
            *_named(Holding.REQUESTS, core.awaited - self._calls.attempts, "block {} without a call"),
            *_named(Holding.REQUESTS, self._calls.unanswered - core.awaited, "call for {} without its block"),
            *_named(Holding.LEASES, self._retained.attempts ^ core.offered, "handle of {} without its K/V, or reverse"),
            *_named(Holding.LEASES, self._serving.offered ^ core.offered, "offer of {} without its K/V, or reverse"),
            *_named(Holding.LEASES, self._serving.announced - core.here, "K/V of {} announced, never computed"),
        ]


def _named(holding: Holding, attempts: Iterable[BlockAttempt], text: str) -> list[Unowned]:
    return [Unowned(holding=holding, name=text.format(attempt)) for attempt in sorted(attempts)]
