"""Gives waiting blocks to workers: asks the lines who is next and the `Fleet` where, and has `BlockFlow` place it."""

from __future__ import annotations

from common.core.block_flow import BlockFlow
from common.core.cluster import WorkerSpec
from common.core.early_reading import start_reader
from common.core.ids import WorkerId
from common.core.placement import BlockNeed
from common.core.request import Request
from common.core.roster import NOBODY
from common.errors import Reason


class BlockPlacer:
    """The order in which the lines are served. Every line is strict: while its head finds no worker, nobody passes."""

    def __init__(self, flow: BlockFlow) -> None:
        self._flow = flow
        self._config = flow.config

    def place(self) -> None:
        """Give out what can be given: finished prefills first, they hold memory at two places' expense.

        Last come blocks whose prefill runs: choosing a decode worker now is a gain, but nobody's need.
        """
        if self._flow.book.somebody_waits:
            while self._place_decode_head():
                pass
            while self._place_prefill_head():
                pass
            while self._place_reader_head():
                pass
        self._flow.changed = False

    def _place_decode_head(self) -> bool:
        flow = self._flow
        request = flow.book.decode_head()
        if request is None or request.prefilled is None:
            return False
        owner = request.prefilled.owner
        if flow.fleet.stranded(owner, request.canvas_tokens):
            flow.retry(request, Reason.LAYOUT_MISMATCH)
            return True
        target = flow.fleet.decode_target(self._reader_need(request, owner), owner=owner, now=flow.now)
        if target is None or flow.must_rest(request, target):
            return False
        flow.start_decode(request, target)
        return True

    def _place_prefill_head(self) -> bool:
        flow = self._flow
        request = flow.book.prefill_head(flow.now)
        limit_tokens = None if request is None else flow.fleet.canvas_limit_tokens
        if request is None or limit_tokens is None:
            return False
        if request.canvas_tokens > limit_tokens:
            self._set_aside(request)
            return True
        request.fits_known = True
        home = request.home if self._config.sticky_workers else None
        target = flow.fleet.prefill_target(
            self._need(request, near=request.home, previous=flow.last_prefill_worker_id),
            backlog_tokens=flow.book.backlog_tokens,
            now=flow.now,
            home=None if home is None else home.life.worker_id,
        )
        if target is None or flow.must_rest(request, target):
            return False
        flow.start_prefill(request, target)
        return True

    def _place_reader_head(self) -> bool:
        flow = self._flow
        request = flow.book.reader_head()
        prefill = None if request is None else request.call
        owner = None if prefill is None else flow.fleet.get(prefill.target)
        if request is None or owner is None:
            return False
        waiting = flow.book.prefill_head(flow.now) if self._config.overflows else None
        target = flow.fleet.early_target(
            self._reader_need(request, owner.spec),
            owner=owner.spec,
            now=flow.now,
            overflow_canvas_tokens=0 if waiting is None or waiting.spec.idle else waiting.canvas_tokens,
        )
        if target is None:
            return False
        start_reader(flow, request, target, owner=owner.spec)
        return True

    def _set_aside(self, request: Request) -> None:
        """No live worker can hold it: fail it if that was never different, else let it wait for one that can."""
        if request.fits_known and not request.spec.idle:
            self._flow.book.park(request)
        else:
            self._flow.fail(request, Reason.TOO_LONG, field="max_tokens")

    def _reader_need(self, request: Request, owner: WorkerSpec) -> BlockNeed:
        """What a decode worker must offer to take the K/V over from `owner`."""
        flow = self._flow
        barred = flow.fleet.barred_readers(owner.life)
        return self._need(request, near=owner, previous=flow.last_decode_worker_id, barred=barred)

    def _need(
        self,
        request: Request,
        *,
        near: WorkerSpec | None,
        previous: WorkerId | None,
        barred: frozenset[WorkerId] = NOBODY,
    ) -> BlockNeed:
        return BlockNeed(
            canvas_tokens=request.canvas_tokens,
            near_domain="" if near is None else near.link_domain,
            previous_worker_id=previous,
            barred=barred,
            topology_alpha=self._config.topology_alpha,
            length_slack=self._config.length_slack,
        )
