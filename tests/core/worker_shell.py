"""A worker's surroundings, played by hand: callers, engine and data plane around a real `WorkerCore`."""

from __future__ import annotations

from collections.abc import Mapping

import common.core.worker as worker_module
from common.core.ids import BlockAttempt, Role
from common.core.params import CacheMode
from common.core.work import BlockWork, IterationReport, KvSource, RemoteKv, StepDelta
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_effects import (
    ForgetKv,
    RunIteration,
    SendCompletion,
    SendFailure,
    SendKvReceived,
    SendPrefillResult,
    SendStep,
    WorkerEffect,
)
from common.core.worker_events import (
    DecodeRequested,
    IterationCompleted,
    KvFetched,
    KvFetchFailed,
    KvReleased,
    KvSendEnded,
    KvSendStarted,
    LifeEnded,
    PrefillRequested,
    WorkCancelled,
    WorkerEvent,
    WorkerTick,
)
from common.errors import Reason
from tests.core.worker_books import Call, WorkerBooks
from tests.core.worker_work import TRANSFER, first_step, step

Effects = list[WorkerEffect]


class WorkerShell:
    """Turns what happens outside into events, and checks what must follow from each, with `books` beside it."""

    def __init__(self, config: WorkerCoreConfig) -> None:
        self.config = config
        self.core = worker_module.WorkerCore(config)
        self.books = WorkerBooks(config)
        self.now = 100.0
        self.arrivals = 0

    @property
    def free_pages(self) -> int:
        return self.core.view().free_pages

    @property
    def report(self) -> IterationReport:
        """The newest report."""
        assert self.books.report is not None
        return self.books.report.report

    @property
    def batch(self) -> RunIteration:
        """The forward that runs now."""
        assert self.books.running is not None
        return self.books.running

    def feed(self, event: WorkerEvent) -> Effects:
        """Hand one event to the core and check all that follows."""
        self.books.free_untouched()
        effects = self.core.handle(event, self.now)
        self.books.budget.retune(self.core.view().token_budget_tokens)
        for effect in effects:
            self.books.check(effect, self.now)
        assert not self.books.expect_failures, "a call was not answered"
        self.books.expect_forgotten = set()
        self.core.check_conservation()
        assert [*self.core.books.unowned(self.now)] == []
        self.books.check_rest(self.core.view(), self.now)
        wakeup = self.core.next_wakeup()
        assert wakeup is None or wakeup > self.now
        return effects

    def submit(self, what: BlockWork, source: KvSource | None = None) -> Effects:
        """A call arrives; `source` None is a Prefill call. A shell lets in one live call per attempt."""
        new, books = what.attempt, self.books
        assert new not in books.calls or books.calls[new].ended, "one live call per attempt"
        here = {a for a, call in books.calls.items() if not call.ended} | set(books.pages)
        same_block = {a for a in here if (a.request_id, a.block) == (new.request_id, new.block)}
        if any(other.attempt >= new.attempt for other in same_block):
            books.expect_failures = {new: Reason.STALE_ATTEMPT}
        elif what.canvas_tokens > self.config.pages_total * self.config.page_size_tokens:
            books.expect_failures = {new: Reason.NO_KV_PAGES}
        else:
            books.expect_failures = {a: Reason.STALE_ATTEMPT for a in same_block if not books.calls[a].ended}
            books.expect_forgotten = same_block
            call = Call(work=what, source=source, arrival=self.arrivals, since_s=self.now)
            self.arrivals += 1
            books.calls[new] = call
            (books.queued if call.runs_prefill else books.page_waiters).append(new)
        return self.feed(PrefillRequested(work=what) if source is None else DecodeRequested(work=what, source=source))

    def cancel(self, attempt: BlockAttempt) -> Effects:
        """The caller is gone."""
        if attempt in self.books.calls:
            self.books.calls[attempt].ended = True
        self.books.expect_forgotten = {attempt}
        self.books.unqueue(attempt)
        return self.feed(WorkCancelled(attempt=attempt))

    def complete(self, reveals: Mapping[BlockAttempt, Mapping[int, int]] | None = None) -> Effects:
        """The forward ends; an attempt that `reveals` does not name reveals token 3 at its first masked position."""
        run, self.books.running = self.books.running, None
        assert run is not None
        deltas: list[tuple[BlockAttempt, StepDelta]] = []
        live = {a for a in (*run.decodes, *run.prefills) if not self.books.calls[a].ended}
        for attempt in (*run.decodes, *run.prefills):
            call = self.books.calls[attempt]
            delta = step(call.steps, dict((reveals or {}).get(attempt, {call.masked[0]: 3})))
            call.reveal(delta)
            if call.runs_prefill and attempt in live and delta.step == 0 and self.config.role is Role.DECODE:
                self.books.decodes.append(attempt)
            deltas.append((attempt, delta))
        effects = self.feed(IterationCompleted(iteration=run.iteration, deltas=tuple(deltas), duration_s=0.01))
        for attempt, delta in deltas:
            assert self._answers(attempt, effects) == (self._expected(attempt, delta) if attempt in live else [])
        return effects

    def fetched(self, attempt: BlockAttempt) -> Effects:
        """The pages are all here."""
        del self.books.fetching[attempt]
        call = self.books.calls[attempt]
        live = not call.ended
        assert isinstance(call.source, RemoteKv)
        first = first_step(call.work) if call.source.early else None
        effects = self.feed(KvFetched(attempt=attempt, transfer=TRANSFER, first=first))
        received = SendKvReceived(attempt=attempt, transfer=TRANSFER, first=first)
        assert (received in effects) == live
        return effects

    def fetch_failed(self, attempt: BlockAttempt, reason: Reason = Reason.PEER_LOST) -> Effects:
        """The fetch ended without K/V."""
        del self.books.fetching[attempt]
        if not self.books.calls[attempt].ended:
            self.books.expect_failures = {attempt: reason}
        return self.feed(KvFetchFailed(attempt=attempt, reason=reason))

    def release(self, attempt: BlockAttempt) -> Effects:
        """The peer has the K/V, or the scheduler wants it gone."""
        offered = attempt in self.books.offers and not self.books.offers[attempt].withdrawn
        self.books.expect_forgotten = {attempt}
        effects = self.feed(KvReleased(attempt=attempt))
        assert (ForgetKv(attempt=attempt) in effects) == offered
        return effects

    def send_started(self, attempt: BlockAttempt) -> Effects:
        """The data plane begins to read."""
        offer = self.books.offers.get(attempt)
        assert attempt in self.books.in_forward if offer is None else not offer.withdrawn
        self.books.sends[attempt] += 1
        return self.feed(KvSendStarted(attempt=attempt))

    def send_ended(self, attempt: BlockAttempt) -> Effects:
        """The data plane reads no more."""
        self.books.sends[attempt] -= 1
        return self.feed(KvSendEnded(attempt=attempt))

    def end_life(self) -> Effects:
        """The scheduler has fenced this life."""
        calls, offers = self.books.calls, self.books.offers
        self.books.expect_failures = {a: Reason.STALE_INCARNATION for a, call in calls.items() if not call.ended}
        self.books.expect_forgotten = set(offers)
        effects = self.feed(LifeEnded())
        assert all(call.ended for call in calls.values()) and all(offer.withdrawn for offer in offers.values())
        return effects

    def wait(self, seconds: float) -> Effects:
        """Time passes, with a tick at each wakeup the core asks for on the way."""
        until = self.now + seconds
        effects: Effects = []
        while (wakeup := self.core.next_wakeup()) is not None and wakeup <= until:
            self.now = wakeup
            effects += self.feed(WorkerTick())
        self.now = until
        return effects + self.feed(WorkerTick())

    def settle(self) -> None:
        """Let everything come to its end; nothing may be left over, and every call must have its answer."""
        books = self.books
        for attempt in books.sends.copy().elements():
            self.send_ended(attempt)
        while books.running or books.fetching or self.core.next_wakeup() is not None:
            for attempt in list(books.fetching):
                self.fetched(attempt)
            if books.running:
                self.complete()
            elif not books.fetching:
                self.wait(self.config.kv_lease_s)
        assert all(call.ended for call in books.calls.values()), "a call was never answered"
        view = self.core.view()
        assert view.idle and (view.free_pages, view.deficit_tokens) == (self.config.pages_total, 0)

    def _expected(self, attempt: BlockAttempt, delta: StepDelta) -> Effects:
        """What a live caller must hear after that step."""
        call = self.books.calls[attempt]
        completion = call.completion(self.config.eos_token_id)
        if self.config.role is Role.DECODE:
            ending: Effects = [SendCompletion(attempt=attempt, completion=completion)] if completion else []
            return [SendStep(attempt=attempt, step=delta), *ending]
        retained = completion is None and call.work.cache_mode is not CacheMode.NONE
        lease_s = self.config.kv_lease_s if retained else 0.0
        assert (attempt in self.books.offers) == retained
        result = SendPrefillResult(
            attempt=attempt, first=delta, completion=completion, retained=retained, lease_s=lease_s
        )
        return [result]

    def _answers(self, attempt: BlockAttempt, effects: Effects) -> Effects:
        answers = (SendStep, SendPrefillResult, SendCompletion, SendFailure)
        return [effect for effect in effects if isinstance(effect, answers) and effect.attempt == attempt]
