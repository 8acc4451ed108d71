"""Sets the overload threshold theta from what workers report, so that waits on both sides of it are equal. Pure."""

from __future__ import annotations

from common.core.defaults import MAX_ADAPTIVE_THRESHOLD_TOKENS, MIN_ADAPTIVE_THRESHOLD_TOKENS
from common.core.ids import Role
from common.core.running_mean import RunningMean
from common.core.work import IterationReport

SMOOTHING = 0.1
INTERVAL_S = 0.25
MAX_STEP = 1.25


class ThresholdTuner:
    """Measures iterations of both roles; with `adapts`, moves theta.

    A prefill worker computes r_p prefill tokens per second, measured. A decode worker that keeps its budget gets
    f = tau - decode tokens per iteration through, in (decode-only iteration time + f / r_p) seconds: r_d. A prefill
    that overflows waits (its canvas + what is outstanding there) / r_d; one that stays waits theta / r_p when the
    prefill workers are just at the threshold. theta tends to r_p times the former: nobody overflows to wait longer.

    Stability: more overflow raises what is outstanding at decode workers and with it theta, which lowers overflow: a
    negative feedback. Running means, one step per `INTERVAL_S` and at most a factor `MAX_STEP` keep it from swinging.
    """

    def __init__(self, *, threshold_tokens: int, adapts: bool) -> None:
        self.adapts = adapts
        self.threshold_tokens = threshold_tokens
        self._prefill_rate = RunningMean(SMOOTHING)
        self._base_s = RunningMean(SMOOTHING)
        self._fresh_tokens = RunningMean(SMOOTHING)
        self._waiting_tokens = RunningMean(SMOOTHING)
        self._canvas_tokens = RunningMean(SMOOTHING)
        self._moved_s = float("-inf")

    def placed(self, canvas_tokens: int) -> None:
        """A prefill of that canvas was placed somewhere."""
        self._canvas_tokens.add(canvas_tokens)

    def observe(self, role: Role, report: IterationReport, *, outstanding_tokens: int, budget_tokens: int) -> None:
        """A worker reported; `outstanding_tokens` are the prefill tokens placed there and not finished."""
        if report.duration_s <= 0.0:
            return
        if role is Role.PREFILL:
            if report.prefill_tokens_admitted:
                self._prefill_rate.add(report.prefill_tokens_admitted / report.duration_s)
            return
        self._waiting_tokens.add(outstanding_tokens)
        self._fresh_tokens.add(max(budget_tokens / 8, budget_tokens - report.decode_tokens))
        if not report.prefill_tokens_admitted:
            self._base_s.add(report.duration_s)

    def move(self, now: float) -> int:
        """theta in force from `now` on."""
        wanted = self._wanted()
        if self.adapts and wanted is not None and now - self._moved_s >= INTERVAL_S:
            self._moved_s = now
            low, high = self.threshold_tokens / MAX_STEP, self.threshold_tokens * MAX_STEP
            bounded = min(max(wanted, low, MIN_ADAPTIVE_THRESHOLD_TOKENS), high, MAX_ADAPTIVE_THRESHOLD_TOKENS)
            self.threshold_tokens = round(bounded)
        return self.threshold_tokens

    def _wanted(self) -> float | None:
        rate, base_s, fresh = self._prefill_rate.value, self._base_s.value, self._fresh_tokens.value
        if not rate or not base_s or not fresh:
            return None
        decode_rate = fresh / (base_s + fresh / rate)
        ahead = self._waiting_tokens.value + self._canvas_tokens.value
        return rate * ahead / decode_rate
