"""Sets a worker's token budget tau, and the number of blocks it wants, from what its iterations cost. Pure."""

from __future__ import annotations

import math

from common.core.defaults import ADAPTIVE_PLAIN_SHARE
from common.core.running_mean import RunningMean
from common.core.token_budget import DeficitTokenBudget
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_iteration import Iteration

SMOOTHING = 0.05
"""Weight of the newest measurement in each running mean."""

GAP_SMOOTHING = 0.01
"""The same, of the gap that a target is compared with: few gaps hold a prefill, and those are long."""


class _Line:
    """A least-squares line through recent points (x, y), both at least 0; older points count less."""

    def __init__(self) -> None:
        self._x, self._y, self._xx, self._xy = (RunningMean(SMOOTHING) for _ in range(4))

    def add(self, x: float, y: float) -> None:
        for mean, value in ((self._x, x), (self._y, y), (self._xx, x * x), (self._xy, x * y)):
            mean.add(value)

    def at(self, x: float) -> float:
        """y at that x, of a line that neither falls nor begins below 0; flat while every x was the same."""
        mean_x, mean_y = self._x.value, self._y.value
        spread = self._xx.value - mean_x * mean_x
        if spread <= 1e-6 * self._xx.value:
            return mean_y
        slope = min(max(0.0, (self._xy.value - mean_x * mean_y) / spread), mean_y / mean_x)
        return mean_y + slope * (x - mean_x)


class BudgetTuner:
    """Measures iterations; with `adapts`, answers a budget for each, and how many blocks the worker wants.

    Every iteration has a fixed cost (launch, reading the weights). Decodes that run along with a prefill hardly pay it;
    an iteration without a prefill, a plain one, pays it for them alone. So the more blocks there are, the less time
    goes into plain iterations; but the longer each block takes, since it stands still during every prefill but its own.
    The tuner wants the fewest blocks with which plain iterations take a share S (ADAPTIVE_PLAIN_SHARE) of the time: the
    other blocks wait, oldest request first, at the scheduler, where any worker may take them.

    Model: a block takes M forwards, of which the first is its prefill. With K blocks and one prefill at a time, the M
    forwards of a block see the prefills of all K, and M - K plain iterations. These last D seconds, those with a
    prefill P (all running means), so S = (M - K) D / ((M - K) D + K P), that is

        K = (1 - S) M D / (S P + (1 - S) D).

    Prefills much cheaper than an iteration's fixed cost A run together, as many tokens as take A: A / c, with c the
    cost per prefill token (`wanted_prefill_tokens`); K is then as many times larger. tau of an iteration leaves
    prefills that many tokens or, if it is more, what the head of the queue needs: the worker does not hold back what it
    asked for. The guarantees of `DeficitTokenBudget` hold with each iteration's own tau.

    A target for the decode gap G, if there is one, bounds K from above: with n decodes and a gap of g now, n G / g.
    It is where the gap is G (a block on its way may exceed it), or 1 where even that is too many. Since g = A + B n,
    with B what each block adds, n' = n G / (A + B n) grows with n, and at n' = n by A / G < 1 per n: it gets there
    from anywhere, and stays within a block of it.

    Stability: M, c, A and a prefill's own cost p do not depend on K; D = A + b K does, and P = D + p. One block more
    makes D longer by b, and the answer larger by (b K / D) * (S p / (D + S p)): two factors below 1, so it settles.
    """

    def __init__(self, config: WorkerCoreConfig) -> None:
        self.adapts = config.token_budget_adapts
        self.last_duration_s = 0.0
        self.wanted_blocks = 0
        self.wanted_prefill_tokens = 0
        self._budget_tokens = config.token_budget_tokens
        self._most_blocks = config.max_batch_size
        self._target_gap_s = config.target_decode_gap_s
        self._gap_s = RunningMean(SMOOTHING)
        self._long_gap_s = RunningMean(GAP_SMOOTHING)
        self._decodes = RunningMean(GAP_SMOOTHING)
        self._plain_s = RunningMean(SMOOTHING)
        self._mixed_s = RunningMean(SMOOTHING)
        self._per_token_s = RunningMean(SMOOTHING)
        self._canvas_tokens = RunningMean(SMOOTHING)
        self._forwards = RunningMean(SMOOTHING)
        self._plain_line = _Line()
        self._gap_from_s: float | None = None

    @property
    def budget_tokens(self) -> int:
        """tau of the newest iteration."""
        return self._budget_tokens

    @property
    def decode_gap_s(self) -> float:
        """Mean time between two steps of a decode; 0 before the first."""
        return self._gap_s.value

    def next_budget_tokens(self, *, decode_tokens: int, head_tokens: int, deficit_tokens: int = 0) -> int:
        """tau for the iteration that is being planned, with so many decode tokens and a head of the queue that long."""
        if self.wanted_blocks:
            fresh_tokens = max(self.wanted_prefill_tokens, head_tokens - deficit_tokens, 1)
            self._budget_tokens = decode_tokens + fresh_tokens
        return self._budget_tokens

    def retune(self, budget: DeficitTokenBudget, *, decode_tokens: int, head_tokens: int) -> None:
        """Give `budget` its tau for the iteration that is being planned; nothing happens unless it adapts."""
        if self.adapts:
            budget.retune(
                self.next_budget_tokens(
                    decode_tokens=decode_tokens, head_tokens=head_tokens, deficit_tokens=budget.deficit_tokens
                )
            )

    def observe(self, iteration: Iteration, *, duration_s: float, now: float) -> None:
        """An iteration has ended at `now` after `duration_s` in the forward."""
        self.last_duration_s = duration_s
        self._observe_gap(iteration, now)
        if not self.adapts:
            return
        self._observe_cost(iteration, duration_s)
        if self._plain_s.known and self._forwards.known and self._per_token_s.value > 0.0:
            self._decide()

    def _observe_cost(self, iteration: Iteration, duration_s: float) -> None:
        if not iteration.prefills:
            self._plain_s.add(duration_s)
            self._plain_line.add(iteration.decode_tokens, duration_s)
            return
        prefill_s = max(0.0, duration_s - self._plain_line.at(iteration.decode_tokens))
        self._mixed_s.add(duration_s)
        self._per_token_s.add(prefill_s / iteration.prefill_tokens)
        self._canvas_tokens.add(iteration.prefill_tokens / len(iteration.prefills))

    def _decide(self) -> None:
        """What is wanted, from the means: see above. One more block than K, since the next one is on its way here."""
        self.wanted_prefill_tokens = round(self._plain_line.at(0) / self._per_token_s.value)
        at_once = max(1.0, self.wanted_prefill_tokens / self._canvas_tokens.value)
        plain_s = (1.0 - ADAPTIVE_PLAIN_SHARE) * self._plain_s.value
        blocks = at_once * self._forwards.value * plain_s / (ADAPTIVE_PLAIN_SHARE * self._mixed_s.value + plain_s)
        self.wanted_blocks = math.ceil(min(max(self._within_gap(blocks), 1.0), self._most_blocks)) + 1

    def _within_gap(self, blocks: float) -> float:
        """So many blocks, or as many as the target of the decode gap leaves of them."""
        if not self._long_gap_s.value:
            return blocks
        return min(blocks, self._decodes.value * self._target_gap_s / self._long_gap_s.value)

    def observe_block(self, forwards: int) -> None:
        """A block is complete after so many forwards, its prefill included."""
        self._forwards.add(forwards)

    def pause(self) -> None:
        """Nothing runs now: the time until the next iteration is nobody's gap."""
        self._gap_from_s = None

    def _observe_gap(self, iteration: Iteration, now: float) -> None:
        """A decode of this iteration saw the time since the iteration before it, if that ran without a pause."""
        if iteration.decode_tokens and self._gap_from_s is not None:
            self._gap_s.add(now - self._gap_from_s)
            if self._target_gap_s:
                self._long_gap_s.add(now - self._gap_from_s)
                self._decodes.add(len(iteration.decodes))
        self._gap_from_s = now
