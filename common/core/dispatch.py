"""How much prefill work a worker may be bound to at once (design, section 4). Pure."""

from __future__ import annotations

from common.core.ids import Role
from common.core.token_budget import min_share_tokens
from common.core.worker_account import WorkerAccount


def bindable_tokens(account: WorkerAccount, dispatch_ahead: int) -> int | None:
    """Late binding: canvas tokens that the worker would still admit within `dispatch_ahead` iterations; None: any.

    An idle worker may have any canvas: it runs alone there, or saves up as head of the queue. Otherwise a decode
    worker admits tau - decode tokens (at least its minimum share) per iteration plus the deficit it reported, a prefill
    worker one batch; what is outstanding there already counts against that. A decode worker that has to save up for its
    only prefill for longer than that may have one more, else its deficit would begin at nothing for each of them.
    """
    outstanding_tokens = account.outstanding_prefill_tokens
    if outstanding_tokens == 0:
        return None
    if account.spec.role is Role.PREFILL:
        return dispatch_ahead * account.spec.max_prefill_tokens_per_batch - outstanding_tokens
    budget_tokens = account.token_budget_tokens
    fresh_tokens = max(budget_tokens - account.decode_step_tokens, min_share_tokens(budget_tokens))
    if account.outstanding_prefills == 1 and outstanding_tokens > dispatch_ahead * fresh_tokens:
        return None
    deficit_tokens = 0 if account.report is None else account.report.deficit_tokens
    return dispatch_ahead * fresh_tokens + deficit_tokens - outstanding_tokens


def wanted_tokens(account: WorkerAccount) -> int | None:
    """Canvas tokens that a worker with an adaptive budget asks for now (see `BudgetTuner`); None: any one canvas.

    Nothing while it has as many blocks as it wants; with a prefill outstanding, only what it would run along with it.
    """
    assert account.report is not None and account.report.wanted_blocks, account.life
    if account.live_blocks >= account.report.wanted_blocks:
        return 0
    if account.outstanding_prefill_tokens == 0:
        return None
    return max(0, account.report.wanted_prefill_tokens - account.outstanding_prefill_tokens)
