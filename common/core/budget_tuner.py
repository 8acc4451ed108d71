"""Sets a worker's token budget tau from what its iterations cost, so that decodes keep a target gap. Pure."""

from __future__ import annotations

from common.core.defaults import MAX_ADAPTIVE_BUDGET_TOKENS, MIN_ADAPTIVE_FRESH_TOKENS, PREFILL_DRAIN_ITERATIONS
from common.core.token_budget import DeficitTokenBudget
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_iteration import Iteration

SMOOTHING = 0.1
"""Weight of the newest measurement in each running mean."""

MAX_STEP = 1.25
"""Largest factor by which the budget for prefills changes from one iteration to the next."""


class BudgetTuner:
    """Measures iterations; with `adapts`, answers a budget for each.

    Model: an iteration with P prefill tokens takes a + c P seconds; a is the running mean over iterations without
    prefills, c that of the cost per prefill token. While prefills wait, tau - decode tokens tends to
    max((G - a) / c, Q / K): the first lets the mean decode gap be the target G, the second (Q tokens waiting, K =
    PREFILL_DRAIN_ITERATIONS) drains a backlog at a rate that grows with it, so that a gap no worker can keep does not
    stall prefills for ever. One prefill cannot be split, so single gaps may be longer: see `DeficitTokenBudget`.

    Stability: a and c are costs of the hardware, not of tau, so the answer does not feed back into the model; what is
    left is Q / K, a first-order decay. Steps are limited to a factor of `MAX_STEP` per iteration.
    """

    def __init__(self, config: WorkerCoreConfig) -> None:
        self.adapts = config.token_budget_adapts
        self.last_duration_s = 0.0
        self.decode_gap_s = 0.0
        self._budget_tokens = config.token_budget_tokens
        self._target_gap_s = config.target_decode_gap_s
        self._fresh_tokens = float(max(config.token_budget_tokens, MIN_ADAPTIVE_FRESH_TOKENS))
        self._base_s: float | None = None
        self._per_token_s: float | None = None
        self._gap_from_s: float | None = None

    @property
    def budget_tokens(self) -> int:
        """tau of the newest iteration."""
        return self._budget_tokens

    def next_budget_tokens(self, *, decode_tokens: int, waiting_tokens: int) -> int:
        """tau for the iteration that is being planned, with so many decode tokens and prefill tokens waiting."""
        if not self.adapts:
            return self._budget_tokens
        wanted = self._wanted_fresh_tokens(waiting_tokens)
        low, high = self._fresh_tokens / MAX_STEP, self._fresh_tokens * MAX_STEP
        self._fresh_tokens = min(max(wanted, low, MIN_ADAPTIVE_FRESH_TOKENS), high, MAX_ADAPTIVE_BUDGET_TOKENS)
        self._budget_tokens = decode_tokens + round(self._fresh_tokens)
        return self._budget_tokens

    def retune(self, budget: DeficitTokenBudget, *, decode_tokens: int, waiting_tokens: int) -> None:
        """Give `budget` its tau for the iteration that is being planned; nothing happens unless it adapts."""
        if self.adapts:
            budget.retune(self.next_budget_tokens(decode_tokens=decode_tokens, waiting_tokens=waiting_tokens))

    def observe(self, iteration: Iteration, *, duration_s: float, now: float) -> None:
        """An iteration has ended at `now` after `duration_s` in the forward."""
        self.last_duration_s = duration_s
        self._observe_gap(iteration, now)
        if not iteration.prefill_tokens:
            self._base_s = _blend(self._base_s, duration_s)
            return
        base_s = 0.0 if self._base_s is None else self._base_s
        per_token_s = max(0.0, duration_s - (base_s if iteration.decode_tokens else 0.0)) / iteration.prefill_tokens
        self._per_token_s = _blend(self._per_token_s, per_token_s)

    def _observe_gap(self, iteration: Iteration, now: float) -> None:
        """A decode of this iteration saw the time since the iteration before it, if that ran without a pause."""
        if iteration.decode_tokens and self._gap_from_s is not None:
            self.decode_gap_s = _blend(self.decode_gap_s or None, now - self._gap_from_s)
        self._gap_from_s = now

    def _wanted_fresh_tokens(self, waiting_tokens: int) -> float:
        if self._base_s is None or not self._per_token_s:
            return self._fresh_tokens
        keeps_gap = (self._target_gap_s - self._base_s) / self._per_token_s
        return max(keeps_gap, waiting_tokens / PREFILL_DRAIN_ITERATIONS)

    def pause(self) -> None:
        """Nothing runs now: the time until the next iteration is nobody's gap."""
        self._gap_from_s = None


def _blend(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTHING * (value - mean)
