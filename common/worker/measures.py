"""What a worker measures: its core's reports, and the fetches of K/V."""

from __future__ import annotations

from common.core.ids import Role
from common.core.work import IterationReport, KvTransfer
from common.errors import Reason
from common.metrics import catalogue as metrics


class WorkerMeasures:
    """Feeds the instruments of one worker. Event loop only."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._iteration = 0

    def report(self, report: IterationReport) -> None:
        """The core's newest report; several may speak of one iteration."""
        if report.iteration > self._iteration:
            self._iteration = report.iteration
            _count_iteration(report)
        metrics.FREE_PAGES.show(report.free_pages)
        metrics.QUEUED_PREFILLS.show(report.queued_prefills)
        metrics.QUEUED_PREFILL_TOKENS.show(report.queued_prefill_tokens)
        if self._role is Role.PREFILL:
            metrics.RETAINED_BLOCKS.show(report.retained_blocks)
            return
        metrics.ACTIVE_DECODES.show(report.active_decodes)
        metrics.DEFICIT_TOKENS.show(report.deficit_tokens)
        metrics.TOKEN_BUDGET_TOKENS.show(report.token_budget_tokens)
        metrics.DECODE_GAP_S.show(report.decode_gap_s)
        metrics.WANTED_BLOCKS.show(report.wanted_blocks)

    def fetched(self, transfer: KvTransfer, *, path: str, early: bool) -> None:
        """K/V of one block has arrived by `path` (`Fetched.path`); `early`: its fetch was begun before its prefill was
        known to have ended."""
        label = "yes" if early else "no"
        metrics.KV_TRANSFER_S.record(transfer.transfer_s, overlap=label)
        metrics.KV_TRANSFER_EXPOSED_S.record(transfer.exposed_s, overlap=label)
        metrics.KV_TRANSFER_BYTES.add(transfer.transfer_bytes, path=path)

    def fetch_failed(self, reason: Reason, *, early: bool) -> None:
        """A fetch has ended without its K/V; that an early one found none is no failure: its prefill kept nothing."""
        if not (early and reason is Reason.KV_NOT_FOUND):
            metrics.KV_FETCH_FAILURES.add(reason=reason.value)


def _count_iteration(report: IterationReport) -> None:
    decodes, prefills = report.decode_tokens > 0, report.prefill_tokens_admitted > 0
    kind = "mixed" if decodes and prefills else "prefill" if prefills else "decode"
    metrics.ITERATION_S.record(report.duration_s, kind=kind)
    metrics.ITERATION_TOKENS.add(report.decode_tokens, kind="decode")
    metrics.ITERATION_TOKENS.add(report.prefill_tokens_admitted, kind="prefill")
