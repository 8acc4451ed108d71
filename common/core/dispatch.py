"""Late binding: how much prefill work a worker may be bound to at once (design, section 4). Pure."""

from __future__ import annotations

from common.core.ids import Role
from common.core.token_budget import min_share_tokens
from common.core.worker_account import WorkerAccount


def bindable_tokens(account: WorkerAccount, dispatch_ahead: int) -> int | None:
    """Canvas tokens that the worker would still admit within `dispatch_ahead` iterations; None: any one canvas.

    An idle worker may have any canvas: it runs alone there, or saves up as head of the queue. Otherwise a decode
    worker admits tau - decode tokens (at least its minimum share) per iteration plus the deficit it reported, a prefill
    worker one batch; what is outstanding there already counts against that.
    """
    outstanding_tokens = account.outstanding_prefill_tokens
    if outstanding_tokens == 0:
        return None
    if account.spec.role is Role.PREFILL:
        return dispatch_ahead * account.spec.max_prefill_tokens_per_batch - outstanding_tokens
    budget_tokens = account.token_budget_tokens
    fresh_tokens = max(budget_tokens - account.decode_step_tokens, min_share_tokens(budget_tokens))
    deficit_tokens = 0 if account.report is None else account.report.deficit_tokens
    return dispatch_ahead * fresh_tokens + deficit_tokens - outstanding_tokens
