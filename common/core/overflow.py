"""Overflow of prefills onto decode workers (Algorithm 2; reference notes, algorithms, section 4). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.core.placement import BlockNeed, W, least_outstanding_tokens, under_threshold, with_pages


def must_hold_back(decode_workers: Sequence[W], *, canvas_tokens: int, backlog_tokens: int) -> bool:
    """Whether finished prefills that wait for decode memory need the pages that an overflow would take.

    `backlog_tokens` is the page-rounded canvas length of those waiting. Memory is compared in tokens (pages times
    page size), so that workers with different page sizes add up.
    """
    free_tokens = sum(worker.pages_free * worker.spec.page_size_tokens for worker in decode_workers)
    need_tokens = max(
        (worker.spec.pages_for(canvas_tokens) * worker.spec.page_size_tokens for worker in decode_workers), default=0
    )
    return free_tokens - backlog_tokens < need_tokens


def overflow_target(
    decode_workers: Sequence[W], need: BlockNeed, *, threshold_tokens: int, backlog_tokens: int
) -> W | None:
    """The decode worker that takes a prefill no prefill worker can take, or None: it stays queued."""
    if must_hold_back(decode_workers, canvas_tokens=need.canvas_tokens, backlog_tokens=backlog_tokens):
        return None
    candidates = with_pages(under_threshold(decode_workers, threshold_tokens), need.canvas_tokens)
    return least_outstanding_tokens(candidates, need)
