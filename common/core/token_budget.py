"""Which waiting prefills join an iteration: the paper's deficit token budget, and the prefill worker's simple cap."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_SHARE_DIVISOR = 8


def min_share_tokens(token_budget_tokens: int) -> int:
    """s: what the head of a queue earns per iteration however many decodes there are, in tokens."""
    return max(1, token_budget_tokens // MIN_SHARE_DIVISOR)


class Stop(enum.Enum):
    """Why the scan over the waiting prefills ended."""

    DRAINED = "drained"
    BUDGET = "budget"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The first `admitted` waiting prefills join the iteration; `tokens` is the sum of their canvases."""

    admitted: int
    tokens: int
    stop: Stop


NOTHING_WAITS = Admission(admitted=0, tokens=0, stop=Stop.DRAINED)


class DeficitTokenBudget:
    """Algorithm 1 (arXiv 2607.04206): decodes first, whole prefills in strict order within tau - decode tokens + D.

    With tau the budget, d the decode tokens of an iteration, b = tau - d, D the deficit, n a prefill's canvas, s the
    minimum share and F the credit that the head of the queue has earned by waiting:

    - A head is admitted when it fits b + D, or (being first) when it fits F, or alone when there is no decode.
    - Stopped by budget: D becomes what is left of b + D; an iteration that admits nothing adds s to F.
    - Stopped by memory: the fresh budget is not banked, D only shrinks.
    - Nothing left waiting: D keeps at most tau. Nothing waiting at the start: D = F = 0, so neither outlives idleness.
    - An admission sets F to 0.

    Theorem (amortized stall-free). Over any window of iterations that all hold decodes, the prefill tokens admitted are
    at most max(D, F) at the window's start + the sum of max(tau - d, s, 0). Proof: let X = max(D, F). Without an
    admission D grows by at most max(b, 0) and F by at most s, so X grows by at most max(b, s, 0). Admitting P <= b + D
    leaves D <= b + D - P and F = 0; admitting n <= F leaves D = F = 0, since n exceeded b + D. Either way P plus the
    new X is at most the old X + max(b, s, 0); sum over the window. While d <= tau - s and F <= D at the start, that is
    the paper's bound, the sum of (tau - d) + D: then D earns at least what F earns and F never decides.

    Longest decode gap. A budget stop leaves D < n of the head, so one iteration with decodes admits fewer than
    max(largest canvas, tau) + max(tau - d, s) prefill tokens.

    Bound on waiting. A head that memory does not stop is admitted after at most ceil(n / s) iterations that admit
    nothing, however many decode tokens are fed from outside (at >= tau per iteration D stays 0 and only F works). With
    heads n1, n2, ... before it, the k-th prefill is admitted within the sum of (ceil(nj / s) + 1) iterations, j <= k.
    """

    def __init__(self, token_budget_tokens: int, *, min_share_tokens: int | None = None) -> None:
        """`min_share_tokens` (s) defaults to an eighth of the budget; 0 is the paper's rule, which can starve."""
        self.retune(token_budget_tokens, min_share=min_share_tokens)
        self._deficit_tokens = 0
        self._head_credit_tokens = 0

    def retune(self, token_budget_tokens: int, *, min_share: int | None = None) -> None:
        """Change tau (and s with it) from the next iteration on; what was earned stays. The theorem then speaks of each
        iteration's own tau and s.
        """
        assert token_budget_tokens >= 1, token_budget_tokens
        self.token_budget_tokens = token_budget_tokens
        self.min_share_tokens = min_share_tokens(token_budget_tokens) if min_share is None else min_share
        assert 0 <= self.min_share_tokens <= token_budget_tokens, self.min_share_tokens

    @property
    def deficit_tokens(self) -> int:
        """D: budget left over by earlier iterations, in tokens."""
        return self._deficit_tokens

    @property
    def head_credit_tokens(self) -> int:
        """F: what the head of the queue has earned by waiting, in tokens."""
        return self._head_credit_tokens

    def admit(self, *, decode_tokens: int, prefill_tokens: Sequence[int], reserve: Callable[[int], bool]) -> Admission:
        """Plan one iteration and settle the deficit.

        `decode_tokens`: sum over the iteration's decodes, 0 when it has none. `prefill_tokens`: canvases of the waiting
        prefills in queue order. `reserve(i)` takes the pages of prefill i, or returns False and takes none.
        """
        if not prefill_tokens:
            self._deficit_tokens = self._head_credit_tokens = 0
            return NOTHING_WAITS
        fresh_tokens = self.token_budget_tokens - decode_tokens
        admitted = tokens = 0
        stop = Stop.DRAINED
        for index, canvas_tokens in enumerate(prefill_tokens):
            first_may_pass = admitted == 0 and (decode_tokens == 0 or canvas_tokens <= self._head_credit_tokens)
            if tokens + canvas_tokens > fresh_tokens + self._deficit_tokens and not first_may_pass:
                stop = Stop.BUDGET
                break
            if not reserve(index):
                stop = Stop.MEMORY
                break
            admitted += 1
            tokens += canvas_tokens
        admission = Admission(admitted=admitted, tokens=tokens, stop=stop)
        self._settle(fresh_tokens, admission)
        return admission

    def _settle(self, fresh_tokens: int, admission: Admission) -> None:
        left_tokens = max(0, fresh_tokens + self._deficit_tokens - admission.tokens)
        if admission.stop is Stop.BUDGET:
            self._deficit_tokens = left_tokens
        elif admission.stop is Stop.MEMORY:
            self._deficit_tokens = max(0, self._deficit_tokens - max(0, admission.tokens - fresh_tokens))
        else:
            # A trickle of small prefills would otherwise bank budget without end and spend it in one long stall.
            self._deficit_tokens = min(left_tokens, self.token_budget_tokens)
        if admission.admitted or admission.stop is Stop.DRAINED:
            self._head_credit_tokens = 0
        elif admission.stop is Stop.BUDGET:
            self._head_credit_tokens += self.min_share_tokens


def admit_prefill_batch(
    *, max_batch_tokens: int, prefill_tokens: Sequence[int], reserve: Callable[[int], bool]
) -> Admission:
    """A prefill worker's batch: the first always, then in order while the sum of canvases stays within the cap.

    Arguments as in `DeficitTokenBudget.admit`; source: reference notes (algorithms, section 4).
    """
    if not prefill_tokens:
        return NOTHING_WAITS
    admitted = tokens = 0
    for index, canvas_tokens in enumerate(prefill_tokens):
        if admitted and tokens + canvas_tokens > max_batch_tokens:
            return Admission(admitted=admitted, tokens=tokens, stop=Stop.BUDGET)
        if not reserve(index):
            return Admission(admitted=admitted, tokens=tokens, stop=Stop.MEMORY)
        admitted += 1
        tokens += canvas_tokens
    return Admission(admitted=admitted, tokens=tokens, stop=Stop.DRAINED)
