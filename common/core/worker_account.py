"""The scheduler's account of one worker life: what it was given and has not given back."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.core import defaults
from common.core.cluster import WorkerSpec, WorkerView
from common.core.ids import BlockAttempt, CallId, WorkerId, WorkerLife
from common.core.pages import PageLedger
from common.core.prefill_turns import PrefillTurns
from common.core.work import IterationReport


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerAccount:
    """Pages, outstanding prefill tokens and live calls of one worker life, by the scheduler's own tally.

    Pages are held by a call (`CallId`) while it runs, then by the attempt (`BlockAttempt`) whose K/V the worker keeps
    for a decode worker. `turns` orders the calls that only prefill. Reports never change the tally. Whenever something
    changes that placement may look at, the account puts its worker id into `touched`, which its fleet empties.
    """

    spec: WorkerSpec
    pages: PageLedger[CallId | BlockAttempt]
    touched: set[WorkerId]
    turns: PrefillTurns
    draining: bool = False
    report: IterationReport | None = None
    decode_calls: set[CallId] = field(default_factory=set)
    prefill_calls: set[CallId] = field(default_factory=set)
    prefill_tokens: dict[CallId, int] = field(default_factory=dict)
    outstanding_prefill_tokens: int = 0
    lengths: dict[CallId, int] = field(default_factory=dict)
    length_sum_tokens: int = 0
    step_tokens: dict[CallId, int] = field(default_factory=dict)
    decode_step_tokens: int = 0
    backoff_until_s: float = float("-inf")
    failures_in_a_row: int = 0

    @classmethod
    def open(cls, spec: WorkerSpec, touched: set[WorkerId]) -> WorkerAccount:
        """An account with nothing owed."""
        turns = PrefillTurns(spec.max_prefill_tokens_per_batch)
        return cls(spec=spec, pages=PageLedger(spec.pages_total), touched=touched, turns=turns)

    @property
    def life(self) -> WorkerLife:
        """Whose account it is."""
        return self.spec.life

    @property
    def pages_free(self) -> int:
        """Pages nobody has reserved."""
        return self.pages.free_pages

    @property
    def active_decodes(self) -> int:
        """Decode calls given to this worker and not ended (transfers and local prefills included)."""
        return len(self.decode_calls)

    @property
    def live_blocks(self) -> int:
        """Calls of both kinds that have not ended."""
        return len(self.lengths)

    @property
    def token_budget_tokens(self) -> int:
        """tau: what the worker said last (it may adapt), else what it registered."""
        reported = 0 if self.report is None else self.report.token_budget_tokens
        return reported or self.spec.token_budget_tokens

    @property
    def outstanding_prefills(self) -> int:
        """Prefills placed here and not finished."""
        return len(self.prefill_tokens)

    @property
    def says_what_it_wants(self) -> bool:
        """Whether the worker adapts its budget and knows how many blocks it wants."""
        return self.report is not None and self.report.wanted_blocks > 0

    @property
    def calls(self) -> list[CallId]:
        """Live calls, oldest first."""
        return sorted(self.decode_calls | self.prefill_calls)

    @property
    def retained(self) -> list[BlockAttempt]:
        """Attempts whose K/V this worker keeps, in order."""
        return sorted(holder for holder in self.pages.held if isinstance(holder, BlockAttempt))

    def open_call(self, call_id: CallId, *, canvas_tokens: int, prefills: bool, decode_step_tokens: int | None) -> None:
        """Reserve what a call needs: the canvas' pages, and its tokens if it runs a prefill.

        `decode_step_tokens` are the query tokens of one of its decode steps; None: it never decodes.
        """
        self.touched.add(self.spec.life.worker_id)
        self.pages.reserve(call_id, self.spec.pages_for(canvas_tokens))
        self.lengths[call_id] = canvas_tokens
        self.length_sum_tokens += canvas_tokens
        if decode_step_tokens is None:
            self.prefill_calls.add(call_id)
            self.turns.add(call_id, canvas_tokens)
        else:
            self.decode_calls.add(call_id)
            self.step_tokens[call_id] = decode_step_tokens
            self.decode_step_tokens += decode_step_tokens
        if prefills:
            self.prefill_tokens[call_id] = canvas_tokens
            self.outstanding_prefill_tokens += canvas_tokens

    def prefill_done(self, call_id: CallId) -> bool:
        """The call's prefill has run: its tokens are no longer outstanding. False when they already were not."""
        tokens = self.prefill_tokens.pop(call_id, None)
        if tokens is None:
            return False
        self.outstanding_prefill_tokens -= tokens
        self.touched.add(self.spec.life.worker_id)
        return True

    def close_call(self, call_id: CallId) -> None:
        """The call is over: pages and tokens come back."""
        self._forget_call(call_id)
        self.pages.release(call_id)

    def retain(self, call_id: CallId, attempt: BlockAttempt) -> None:
        """The call is over, but its pages stay, now held by the attempt."""
        self._forget_call(call_id)
        self.pages.hand_over(call_id, attempt)

    def release_retained(self, attempt: BlockAttempt) -> bool:
        """The worker no longer keeps that K/V. False when the tally already said so."""
        if attempt not in self.pages.held:
            return False
        self.pages.release(attempt)
        self.touched.add(self.spec.life.worker_id)
        return True

    def back_off(self, until_s: float) -> None:
        """Give it no new work until then."""
        self.backoff_until_s = max(self.backoff_until_s, until_s)
        self.touched.add(self.spec.life.worker_id)

    def hear(self, report: IterationReport) -> None:
        """Its newest report."""
        self.report = report
        self.touched.add(self.spec.life.worker_id)

    def suspect(self, now: float, *, first_s: float) -> float:
        """A call to it broke: back off, twice as long for each failure in a row. Returns when that ends."""
        delay_s = min(first_s * 2.0**self.failures_in_a_row, defaults.MAX_PEER_BACKOFF_S)
        self.failures_in_a_row = min(self.failures_in_a_row + 1, 16)
        self.back_off(now + delay_s)
        return self.backoff_until_s

    def trust(self) -> None:
        """It answered: the next failure is a first one."""
        self.failures_in_a_row = 0

    def view(self) -> WorkerView:
        """A frozen copy."""
        return WorkerView(
            spec=self.spec,
            pages_free=self.pages_free,
            outstanding_prefill_tokens=self.outstanding_prefill_tokens,
            active_decodes=self.active_decodes,
            draining=self.draining,
            report=self.report,
            live_blocks=self.live_blocks,
            length_sum_tokens=self.length_sum_tokens,
        )

    def check(self) -> None:
        """Assert that the tally agrees with itself."""
        self.pages.check()
        assert self.outstanding_prefill_tokens == sum(self.prefill_tokens.values()), self.life
        calls = {holder for holder in self.pages.held if not isinstance(holder, BlockAttempt)}
        assert calls == self.decode_calls | self.prefill_calls, self.life
        assert set(self.prefill_tokens) <= calls and set(self.step_tokens) == self.decode_calls, self.life
        assert set(self.lengths) == calls and self.length_sum_tokens == sum(self.lengths.values()), self.life
        assert self.decode_step_tokens == sum(self.step_tokens.values()), self.life

    def _forget_call(self, call_id: CallId) -> None:
        self.prefill_done(call_id)
        self.touched.add(self.spec.life.worker_id)
        self.length_sum_tokens -= self.lengths.pop(call_id)
        self.decode_step_tokens -= self.step_tokens.pop(call_id, 0)
        self.decode_calls.discard(call_id)
        self.prefill_calls.discard(call_id)
        self.turns.discard(call_id)
