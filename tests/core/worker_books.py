"""The oracle beside a worker core: books kept from effects and outcomes alone, never from the core's state.

They say which attempt may read or write which page at this moment, what each block has revealed, who waits in which
order, and what Algorithm 1 allows; every effect is checked against them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.core.ids import BlockAttempt, Role
from common.core.params import CacheMode
from common.core.work import BlockCompletion, BlockWork, FinishReason, KvSource, LocalPrefill, NoKv, RemoteKv, StepDelta
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_effects import (
    AbortFetch,
    CloseBlock,
    FetchKv,
    ForgetKv,
    OpenBlock,
    Report,
    RetainKv,
    RunIteration,
    SendCompletion,
    SendFailure,
    SendKvReceived,
    SendPrefillResult,
    SendStep,
    WorkerEffect,
)
from common.core.worker_view import WorkerView
from common.errors import Reason
from tests.core.budget_oracle import BudgetOracle
from tests.core.worker_work import first_step


@dataclass(slots=True, kw_only=True)
class Call:
    """One Prefill (`source` None) or Decode call; `ended`: answered, or its caller is gone."""

    work: BlockWork
    source: KvSource | None
    arrival: int
    since_s: float
    ended: bool = False
    revealed: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    skipped_turns: int = 0

    @property
    def runs_prefill(self) -> bool:
        return self.source is None or isinstance(self.source, LocalPrefill)

    @property
    def masked(self) -> list[int]:
        start = self.work.attempt.block * self.work.block_length_tokens
        return [p for p in range(start, start + self.work.block_length_tokens) if p not in self.revealed]

    def reveal(self, delta: StepDelta) -> None:
        self.revealed.update(zip(delta.positions, delta.token_ids, strict=True))
        self.steps += 1

    def completion(self, eos: int | None) -> BlockCompletion | None:
        """What the answer must be now, counted out position by position."""
        start = self.work.attempt.block * self.work.block_length_tokens
        end = start + self.work.block_length_tokens
        finish = FinishReason.LENGTH if end >= self.work.max_tokens else None
        for position in range(start, min(end, self.work.max_tokens)):
            if position not in self.revealed:
                return None
            if self.revealed[position] == eos and not self.work.ignore_eos:
                finish = FinishReason.STOP
                break
        return BlockCompletion(prefill_forwards=1, decode_forwards=self.steps - 1, finish=finish)


@dataclass(slots=True, kw_only=True)
class Offer:
    """K/V on offer, until when."""

    expires_s: float
    withdrawn: bool = False


class WorkerBooks:
    """What is true around one worker. `expect_*` fields say what the event being handled allows."""

    def __init__(self, config: WorkerCoreConfig) -> None:
        self.config = config
        self.budget = BudgetOracle(config.token_budget_tokens)
        self.calls: dict[BlockAttempt, Call] = {}
        self.pages: dict[BlockAttempt, tuple[int, ...]] = {}
        self.open: set[BlockAttempt] = set()
        self.fetching: dict[BlockAttempt, bool] = {}  # value: asked to abort
        self.offers: dict[BlockAttempt, Offer] = {}
        self.sends: Counter[BlockAttempt] = Counter()  # of offers, and of prefills that run
        self.running: RunIteration | None = None
        self.queued: list[BlockAttempt] = []
        self.page_waiters: list[BlockAttempt] = []
        self.decodes: list[BlockAttempt] = []
        self.most_decodes = 0
        self.report: Report | None = None
        self.expect_failures: dict[BlockAttempt, Reason] = {}
        self.expect_forgotten: set[BlockAttempt] = set()

    @property
    def free_pages(self) -> int:
        """Pages that nothing may touch."""
        return self.config.pages_total - sum(map(len, self.pages.values()))

    @property
    def in_forward(self) -> set[BlockAttempt]:
        """Attempts that the running forward touches."""
        return {*self.running.decodes, *self.running.prefills} if self.running else set()

    def pages_needed(self, attempt: BlockAttempt) -> int:
        """Pages of its whole canvas."""
        return -(-self.calls[attempt].work.canvas_tokens // self.config.page_size_tokens)

    def unqueue(self, attempt: BlockAttempt) -> None:
        """It waits and decodes no more."""
        for queue in (self.queued, self.page_waiters, self.decodes):
            if attempt in queue:
                queue.remove(attempt)

    def touched(self, attempt: BlockAttempt) -> bool:
        """Whether an engine state, a forward, a fetch, an offer or a send may touch its pages."""
        touching = self.open | self.in_forward | self.fetching.keys() | self.offers.keys()
        return attempt in touching or self.sends[attempt] > 0

    def free_untouched(self) -> None:
        """Take back what nothing touches any more."""
        for attempt in [a for a, offer in self.offers.items() if offer.withdrawn and not self.sends[a]]:
            del self.offers[attempt]
        for attempt in [a for a in self.pages if self.calls[a].ended and not self.touched(a)]:
            del self.pages[attempt]

    def check(self, effect: WorkerEffect, now: float) -> None:
        """Judge one effect and book it."""
        match effect:
            case OpenBlock():
                self._open_block(effect)
            case CloseBlock():
                assert effect.attempt not in self.in_forward, "closed during its forward"
                self.open.remove(effect.attempt)
                self.unqueue(effect.attempt)
            case RunIteration():
                self._run(effect)
            case FetchKv():
                source = self.calls[effect.attempt].source
                assert isinstance(source, RemoteKv)
                assert (effect.handle, effect.early) == (source.handle, source.first is None)
                self._take_turn_for_pages(effect.attempt, effect.page_ids)
                self.fetching[effect.attempt] = False
            case AbortFetch():
                assert self.fetching[effect.attempt] is False
                self.fetching[effect.attempt] = True
            case RetainKv():
                self._retain(effect, now)
            case ForgetKv():
                offer = self.offers[effect.attempt]
                expired = offer.expires_s <= now and not self.sends[effect.attempt]
                assert not offer.withdrawn and (effect.attempt in self.expect_forgotten or expired)
                offer.withdrawn = True
            case SendKvReceived():
                source = self.calls[effect.attempt].source
                assert isinstance(source, RemoteKv) and not self.calls[effect.attempt].ended
                assert (effect.first is None) != (source.first is None), "said twice, or not at all"
                first = source.first or effect.first
                assert first is not None
                self.calls[effect.attempt].reveal(first)
            case SendStep():
                assert not self.calls[effect.attempt].ended
            case SendPrefillResult():
                self._answer(effect.attempt)
            case SendCompletion():
                self._complete(effect)
            case SendFailure():
                self._fail(effect, now)
            case Report():
                self.report = effect
        self.free_untouched()

    def check_rest(self, view: WorkerView, now: float) -> None:
        """Assert what must hold between any two events."""
        assert view.free_pages == self.free_pages, "pages leaked, or freed while something may touch them"
        assert all(not self.calls[a].ended or self.touched(a) for a in self.pages), "pages held for nothing"
        assert all(not self.calls[a].ended or aborted for a, aborted in self.fetching.items())
        for attempt, offer in self.offers.items():
            assert offer.withdrawn or self.sends[attempt] or offer.expires_s > now, "outlived its lease"
        for attempt in self.page_waiters:
            assert self.calls[attempt].since_s + self.config.kv_page_wait_s > now, "waits for pages for ever"
        self._check_nothing_stalls()
        assert list(view.queued_prefills) == self.queued
        assert list(view.waiting_pages) == self.page_waiters
        assert set(view.active_decodes) == set(self.decodes)
        assert set(view.retained) == {a for a, offer in self.offers.items() if not offer.withdrawn}
        assert set(view.fetching) == {a for a, aborted in self.fetching.items() if not aborted}
        if self.config.role is Role.DECODE:
            assert view.deficit_tokens == self.budget.deficit
        if self.running is None and self.report is not None:
            reported = self.report.report
            assert (reported.free_pages, reported.deficit_tokens) == (view.free_pages, view.deficit_tokens)
            assert (reported.retained_blocks, reported.queued_prefills) == (len(view.retained), len(self.queued))

    def _check_nothing_stalls(self) -> None:
        if self.running is None:
            assert not self.decodes, "decodes wait for no reason"
            assert not self.queued or not self._could_take_pages(self.queued[0]), "a prefill waits for no reason"
            if not self.queued:
                self.budget.idle()
        if self.page_waiters:
            first = self.page_waiters[0]
            older_prefill = self.queued and self.calls[self.queued[0]].arrival < self.calls[first].arrival
            assert older_prefill or self.pages_needed(first) > self.free_pages, "a decode waits for no reason"

    def _could_take_pages(self, prefill: BlockAttempt) -> bool:
        arrival = self.calls[prefill].arrival
        older_waits = any(self.calls[a].arrival < arrival for a in self.page_waiters)
        return not older_waits and self.pages_needed(prefill) <= self.free_pages

    def _take_turn_for_pages(self, attempt: BlockAttempt, page_ids: tuple[int, ...]) -> None:
        assert self.page_waiters.pop(0) == attempt, "pages out of turn"
        self._take_pages(attempt, page_ids)

    def _take_pages(self, attempt: BlockAttempt, page_ids: tuple[int, ...]) -> None:
        in_use = {page for held in self.pages.values() for page in held}
        assert not in_use & set(page_ids), f"pages {in_use & set(page_ids)} may still be touched"
        assert set(page_ids) <= set(range(self.config.pages_total))
        assert len(page_ids) == len(set(page_ids)) == self.pages_needed(attempt)
        self.pages[attempt] = page_ids

    def _open_block(self, effect: OpenBlock) -> None:
        attempt = effect.work.attempt
        call = self.calls[attempt]
        assert effect.work == call.work and not call.ended and attempt not in self.open
        self.open.add(attempt)
        if call.runs_prefill:
            assert effect.first is None
            assert all(self.calls[a].arrival > call.arrival for a in self.page_waiters), "pages past an older decode"
            self._take_pages(attempt, effect.page_ids)
            return
        assert isinstance(call.source, RemoteKv | NoKv) and effect.first == (call.source.first or first_step(call.work))
        if isinstance(call.source, NoKv):
            self._take_turn_for_pages(attempt, effect.page_ids)
            call.reveal(call.source.first)
        assert effect.page_ids == self.pages[attempt]
        self.decodes.append(attempt)

    def _run(self, effect: RunIteration) -> None:
        batch = (*effect.decodes, *effect.prefills)
        assert self.running is None and batch and len(set(batch)) == len(batch)
        assert set(batch) <= self.open and not any(self.calls[a].ended for a in batch)
        assert set(effect.decodes) <= set(self.decodes)
        assert len(effect.decodes) == min(len(self.decodes), self.config.max_batch_size)
        assert list(effect.prefills) == self.queued[: len(effect.prefills)], "a prefill passed the head"
        del self.queued[: len(effect.prefills)]
        self._check_turns(effect)
        admitted = [self.calls[a].work.canvas_tokens for a in effect.prefills]
        head = self.calls[self.queued[0]].work.canvas_tokens if self.queued else None
        head_has_pages = bool(self.queued) and self._could_take_pages(self.queued[0])
        if self.config.role is Role.DECODE:
            decode_tokens = sum(self._decode_tokens(self.calls[a].work) for a in effect.decodes)
            self._check_budget(decode_tokens)
            self.budget.judge(decode_tokens, admitted, head, head_has_pages)
        else:
            cap_tokens = self.config.max_prefill_tokens_per_batch
            assert len(admitted) == 1 or sum(admitted) <= cap_tokens, "past the cap"
            assert head is None or sum(admitted) + head > cap_tokens or not head_has_pages
        self.running = effect

    def _check_budget(self, decode_tokens: int) -> None:
        """tau is what was asked for, or once it adapts leaves prefills something."""
        fixed = self.budget.tau == self.config.token_budget_tokens
        adapted = self.config.token_budget_adapts and self.budget.tau > decode_tokens
        assert fixed or adapted, "the budget moved without reason"

    def _check_turns(self, effect: RunIteration) -> None:
        self.most_decodes = max(self.most_decodes, len(self.decodes))
        for attempt in self.decodes:
            call = self.calls[attempt]
            call.skipped_turns = 0 if attempt in effect.decodes else call.skipped_turns + 1
            assert call.skipped_turns < -(-self.most_decodes // self.config.max_batch_size), "turns are unfair"

    def _decode_tokens(self, what: BlockWork) -> int:
        blocks_left = -(-what.max_tokens // what.block_length_tokens) - what.attempt.block
        by_mode = {
            CacheMode.DUAL: what.block_length_tokens,
            CacheMode.PREFIX: blocks_left * what.block_length_tokens,
            CacheMode.NONE: what.canvas_tokens,
        }
        return by_mode[what.cache_mode]

    def _retain(self, effect: RetainKv, now: float) -> None:
        call = self.calls[effect.attempt]
        assert self.config.role is Role.PREFILL and call.work.cache_mode is not CacheMode.NONE and not call.ended
        assert effect.page_ids == self.pages[effect.attempt]
        assert (effect.canvas_tokens, effect.lease_s) == (call.work.canvas_tokens, self.config.kv_lease_s)
        self.offers[effect.attempt] = Offer(expires_s=now + effect.lease_s)

    def _complete(self, effect: SendCompletion) -> None:
        call = self.calls[effect.attempt]
        if isinstance(call.source, NoKv) and not call.steps:
            assert self.page_waiters.pop(0) == effect.attempt
            call.reveal(call.source.first)
        assert effect.completion == call.completion(self.config.eos_token_id)
        self._answer(effect.attempt)

    def _fail(self, effect: SendFailure, now: float) -> None:
        call = self.calls.get(effect.attempt)
        if effect.attempt in self.expect_failures:
            assert effect.reason is self.expect_failures.pop(effect.attempt)
        else:
            assert effect.reason is Reason.NO_KV_PAGES and effect.attempt in self.page_waiters + self.queued[:1]
            assert call is not None and call.source is not None, "a Prefill call waits on"
            assert call.since_s + self.config.kv_page_wait_s <= now, "gave up too early"
        if call is not None and not call.ended:
            self._answer(effect.attempt)
            self.unqueue(effect.attempt)

    def _answer(self, attempt: BlockAttempt) -> None:
        assert not self.calls[attempt].ended, f"{attempt} was answered twice, or after its caller had gone"
        self.calls[attempt].ended = True
