"""What a worker says of itself after an iteration."""

from __future__ import annotations

from common.core.budget_tuner import BudgetTuner
from common.core.ids import Role
from common.core.token_budget import DeficitTokenBudget
from common.core.work import IterationReport
from common.core.worker_blocks import WorkerBlocks
from common.core.worker_iteration import Iteration


def report_of(
    *,
    role: Role,
    last: Iteration,
    tuner: BudgetTuner,
    budget: DeficitTokenBudget,
    blocks: WorkerBlocks,
    free_pages: int,
    retained_blocks: int,
) -> IterationReport:
    """The report after iteration `last`. A prefill worker has no token budget to speak of."""
    decodes = role is Role.DECODE
    return IterationReport(
        iteration=last.number,
        duration_s=tuner.last_duration_s,
        decode_tokens=last.decode_tokens,
        prefill_tokens_admitted=last.prefill_tokens,
        deficit_tokens=budget.deficit_tokens,
        free_pages=free_pages,
        active_decodes=len(blocks.decodes),
        queued_prefills=len(blocks.queued),
        queued_prefill_tokens=blocks.queued_tokens,
        retained_blocks=retained_blocks,
        token_budget_tokens=tuner.budget_tokens if decodes else 0,
        token_budget_adapts=decodes and tuner.adapts,
        decode_gap_s=tuner.decode_gap_s,
        wanted_blocks=tuner.wanted_blocks if decodes else 0,
        wanted_prefill_tokens=tuner.wanted_prefill_tokens if decodes else 0,
    )
