"""What the scheduler measures: the core's effects as they come, its view sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

from common.clock import Clock
from common.core.cluster import ClusterView
from common.core.effects import BlockPlacement, PublishBlock, SchedulerEffect
from common.core.ids import Role
from common.core.scheduler import SchedulerCore
from common.errors import Reason
from common.metrics import catalogue as metrics

SAMPLE_INTERVAL_S = 0.5
"""Time between two samples of the core's view."""


class SchedulerMeasures:
    """Feeds the instruments from one core. Event loop only."""

    def __init__(self, core: SchedulerCore, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._divergences = 0
        self._retried: Counter[Reason] = Counter()
        self._early = self._early_unused = 0
        for counter in (metrics.REPLAY_DIVERGENCE, metrics.BLOCKS, metrics.OVERFLOWED_PREFILLS):
            counter.add(0)

    async def run(self) -> NoReturn:
        """Sample for ever; ends by cancellation."""
        while True:
            self.sample()
            await self._clock.sleep(SAMPLE_INTERVAL_S)

    def observe(self, effects: Iterable[SchedulerEffect]) -> None:
        """Count what the core asked for."""
        for effect in effects:
            if isinstance(effect, PublishBlock):
                _count_block(effect.placement)

    def sample(self) -> None:
        """Take the core's present state into the instruments."""
        view = self._core.view()
        metrics.REPLAY_DIVERGENCE.add(view.replay_divergences - self._divergences)
        self._divergences = view.replay_divergences
        retried = Counter(dict(view.retried_blocks))
        for reason, blocks in (retried - self._retried).items():
            metrics.BLOCKS_RETRIED.add(blocks, reason=reason.value)
        self._retried = retried
        metrics.EARLY_DECODES.add(view.early_readers - self._early)
        metrics.EARLY_DECODES_UNUSED.add(view.early_readers_unused - self._early_unused)
        self._early, self._early_unused = view.early_readers, view.early_readers_unused
        _show(view)


def _count_block(block: BlockPlacement) -> None:
    metrics.BLOCKS.add()
    metrics.OVERFLOWED_PREFILLS.add(int(block.overflow))
    metrics.FORWARDS.add(block.prefill_forwards, kind="prefill")
    metrics.FORWARDS.add(block.decode_forwards, kind="decode")
    metrics.BLOCK_QUEUE_S.record(block.queue_s)
    if block.prefill_s:
        metrics.BLOCK_PREFILL_S.record(block.prefill_s)
    if block.decode_worker_id is not None:
        metrics.BLOCK_DECODE_S.record(block.decode_s)


def _show(view: ClusterView) -> None:
    metrics.RUNNING_REQUESTS.show(view.running_requests)
    metrics.QUEUED_BLOCKS.show(view.queued_blocks)
    metrics.PARKED_BLOCKS.show(view.parked_blocks)
    metrics.WAITING_DECODE_BLOCKS.show(view.waiting_decode_blocks)
    metrics.WAITING_IDLE_BLOCKS.show(view.waiting_idle_blocks)
    metrics.OVERLOAD_THRESHOLD_TOKENS.show(view.overload_threshold_tokens)
    metrics.OUTSTANDING_PREFILL_TOKENS.show_each(
        (worker.outstanding_prefill_tokens, {"worker_id": worker.spec.life.worker_id}) for worker in view.workers
    )
    roles = Counter(worker.spec.role for worker in view.workers)
    metrics.LIVE_WORKERS.show_each((roles[role], {"role": role.value}) for role in Role)
