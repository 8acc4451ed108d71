"""The worker's whole policy as one state machine, for both roles: queues, iteration batches, pages, K/V retention.

Events in, effects out; `now` is in seconds on any monotonic clock. The life of a block:

    prefill role   QUEUED -> PREFILLING -> retained under lease | done
    local prefill  QUEUED -> PREFILLING -> DECODING -> done
    remote K/V     WAITING_PAGES -> FETCHING -> DECODING -> done
    no K/V         WAITING_PAGES -> DECODING -> done

A block that is cancelled while a forward or a fetch may touch its pages becomes a ZOMBIE: its outcome is dropped and
its pages return when that forward or fetch has ended. No page is reused before.
"""

from __future__ import annotations

from typing import assert_never

from common.core.budget_tuner import BudgetTuner
from common.core.ids import BlockAttempt, Role
from common.core.kv_retention import KvRetention
from common.core.page_pool import PagePool
from common.core.params import CacheMode
from common.core.token_budget import Admission, DeficitTokenBudget, Stop, admit_prefill_batch
from common.core.work import BlockWork, IterationReport, KvSource, NoKv, RemoteKv, StepDelta
from common.core.worker_block import Stage, WorkerBlock
from common.core.worker_blocks import WorkerBlocks
from common.core.worker_books import WorkerBooks
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_effects import (
    AbortFetch,
    CloseBlock,
    OpenBlock,
    Report,
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
from common.core.worker_iteration import NO_ITERATION, Iteration
from common.core.worker_report import report_of
from common.core.worker_view import WorkerView
from common.errors import Reason


class WorkerCore:
    """One worker's state. `handle` is its only mutator."""

    def __init__(self, config: WorkerCoreConfig) -> None:
        self._config = config
        self._pool = PagePool(config.pages_total)
        self._budget = DeficitTokenBudget(config.token_budget_tokens)
        self._retention = KvRetention(pool=self._pool, lease_s=config.kv_lease_s)
        self._blocks = WorkerBlocks()
        self._running: Iteration | None = None
        self._last = NO_ITERATION
        self._tuner = BudgetTuner(config)
        self._arrivals = 0
        self._now = 0.0
        self._effects: list[WorkerEffect] = []
        self._reported = self._report()

    def handle(self, event: WorkerEvent, now: float) -> list[WorkerEffect]:
        """Apply one event; the effects are to be carried out in order, before the next event.

        A call for an attempt that is here, or older than one that is, is refused STALE_ATTEMPT; a newer one ends the
        older. SendFailure names the attempt, so the shell lets in one live call per attempt.
        """
        self._now = now
        self._effects = []
        self._apply(event)
        self._effects += self._retention.expire(now)
        self._advance()
        if self._expire_page_waits():
            self._advance()
        if self._running is None and (report := self._report()) != self._reported:
            self._send_report(report)
        return self._effects

    def view(self) -> WorkerView:
        """A frozen snapshot."""
        return WorkerView(
            role=self._config.role,
            running_iteration=self._running.number if self._running else None,
            iterations=self._last.number,
            pages_total=self._pool.pages_total,
            free_pages=self._pool.free_pages,
            deficit_tokens=self._budget.deficit_tokens,
            token_budget_tokens=self._budget.token_budget_tokens,
            active_decodes=tuple(self._blocks.decodes),
            queued_prefills=tuple(self._blocks.queued),
            waiting_pages=tuple(self._blocks.page_waiters),
            fetching=self._blocks.at(Stage.FETCHING),
            zombies=self._blocks.at(Stage.ZOMBIE),
            retained=self._retention.offered,
            withdrawn=self._retention.withdrawn,
        )

    def next_wakeup(self) -> float | None:
        """When a `WorkerTick` is due: the next lease or page wait to end; None when none is running."""
        wait_end, expiry = self._blocks.next_page_wait_end(self._config.kv_page_wait_s), self._retention.next_expiry()
        if wait_end is None or expiry is None:
            return expiry if wait_end is None else wait_end
        return min(wait_end, expiry)

    def check_conservation(self) -> None:
        """Assert that pages add up and every block is exactly where its stage says."""
        self.books.check(self._running)

    @property
    def books(self) -> WorkerBooks:
        """What is held, and by whom."""
        return WorkerBooks(pool=self._pool, blocks=self._blocks, retention=self._retention)

    def _apply(self, event: WorkerEvent) -> None:
        match event:
            case IterationCompleted():
                self._iteration_completed(event)
            case PrefillRequested():
                assert self._config.role is Role.PREFILL
                self._admit_call(event.work, None)
            case DecodeRequested():
                assert self._config.role is Role.DECODE
                self._admit_call(event.work, event.source)
            case WorkCancelled():
                self._end_attempt(event.attempt, None, "")
            case KvFetched():
                self._fetched(event)
            case KvFetchFailed():
                self._fetch_failed(event)
            case KvReleased():
                self._effects += self._retention.withdraw(event.attempt)
            case KvSendStarted():
                block = self._blocks.get(event.attempt)
                self._retention.send_started(event.attempt, in_forward=block is not None and block.in_forward)
            case KvSendEnded():
                self._retention.send_ended(event.attempt)
            case LifeEnded():
                for attempt in (*self._blocks.attempts, *self._retention.offered):
                    self._end_attempt(attempt, Reason.STALE_INCARNATION, "this worker life was fenced")
            case WorkerTick():
                pass
            case _:
                assert_never(event)

    def _advance(self) -> None:
        """Start whatever can start now."""
        self._grant_pages()
        if self._running is None:
            self._start_iteration()
            self._grant_pages()

    # Calls arrive and end.

    def _admit_call(self, work: BlockWork, source: KvSource | None) -> None:
        new = work.attempt
        older = self._attempts_at_block_of(new)
        refusal = self._refusal(work, older)
        if refusal is not None:
            self._effects.append(refusal)
            return
        for attempt in older:
            self._end_attempt(attempt, Reason.STALE_ATTEMPT, f"superseded by attempt {new.attempt}")
        self._blocks.add(
            WorkerBlock.arriving(
                work,
                source,
                arrival=self._arrivals,
                page_size_tokens=self._config.page_size_tokens,
                eos_token_id=self._config.eos_token_id,
                now=self._now,
            )
        )
        self._arrivals += 1

    def _attempts_at_block_of(self, new: BlockAttempt) -> list[BlockAttempt]:
        here = (*self._blocks.attempts, *self._retention.offered, *self._retention.withdrawn)
        return [a for a in here if a.request_id == new.request_id and a.block == new.block]

    def _refusal(self, work: BlockWork, same_block: list[BlockAttempt]) -> SendFailure | None:
        newest = max((attempt.attempt for attempt in same_block), default=-1)
        if newest >= work.attempt.attempt:
            message = f"attempt {newest} at this block is here already"
            return SendFailure(attempt=work.attempt, reason=Reason.STALE_ATTEMPT, message=message)
        pages = work.pages(self._config.page_size_tokens)
        if pages > self._pool.pages_total:
            message = f"the canvas needs {pages} KV pages, this worker has {self._pool.pages_total}"
            return SendFailure(attempt=work.attempt, reason=Reason.NO_KV_PAGES, message=message)
        return None

    def _end_attempt(self, attempt: BlockAttempt, reason: Reason | None, message: str) -> None:
        """Give up whatever is held for `attempt`; `reason` answers its call (None: the call has ended already)."""
        self._effects += self._retention.withdraw(attempt)
        block = self._blocks.get(attempt)
        if block is None or block.stage is Stage.ZOMBIE:
            return
        if reason is not None:
            self._effects.append(SendFailure(attempt=attempt, reason=reason, message=message))
        if block.stage is Stage.FETCHING:
            self._effects.append(AbortFetch(attempt=attempt))
            block.move_to(Stage.ZOMBIE)
        elif block.in_forward:
            self._blocks.dequeue(attempt)
            block.move_to(Stage.ZOMBIE)
        else:
            self._drop(block)

    def _drop(self, block: WorkerBlock) -> None:
        """Forget a block that nothing touches any more; its pages are free."""
        self._close(block)
        self._blocks.remove(block.attempt)
        if self._pool.pages_of(block.attempt) and not self._retention.keep_while_sent(block.attempt):
            self._pool.release(block.attempt)

    def _open(self, block: WorkerBlock, first: StepDelta | None) -> None:
        page_ids = self._pool.pages_of(block.attempt)
        self._effects.append(OpenBlock(work=block.work, page_ids=page_ids, first=first))
        block.opened = True

    def _close(self, block: WorkerBlock) -> None:
        if block.opened:
            self._effects.append(CloseBlock(attempt=block.attempt))
            block.opened = False

    # Decodes get pages and K/V.

    def _grant_pages(self) -> None:
        while (block := self._blocks.next_page_waiter()) is not None:
            page_ids = self._pool.allocate(block.attempt, block.pages)
            if page_ids is None:
                return
            self._blocks.dequeue(block.attempt)
            block.note_page_wait(False, self._now)
            if not isinstance(block.source, NoKv):
                block.move_to(Stage.FETCHING)
                self._effects.append(block.fetch_into(page_ids))
            else:
                self._begin_decoding(block, block.source.first)

    def _fetched(self, event: KvFetched) -> None:
        block = self._blocks[event.attempt]
        if block.stage is Stage.ZOMBIE:
            self._drop(block)
            return
        assert isinstance(block.source, RemoteKv)
        first = block.source.first or event.first
        assert first is not None, f"{event.attempt}: nobody says what the prefill revealed"
        news = first if block.source.early else None
        self._effects.append(SendKvReceived(attempt=event.attempt, transfer=event.transfer, first=news))
        self._begin_decoding(block, first)

    def _fetch_failed(self, event: KvFetchFailed) -> None:
        block = self._blocks[event.attempt]
        if block.stage is not Stage.ZOMBIE:
            assert block.stage is Stage.FETCHING, block.stage
            message = "the K/V could not be fetched from the prefill worker"
            self._effects.append(SendFailure(attempt=event.attempt, reason=event.reason, message=message))
        self._drop(block)

    def _begin_decoding(self, block: WorkerBlock, first: StepDelta) -> None:
        """`first` is what the block's prefill revealed elsewhere; its pages are ready."""
        block.move_to(Stage.DECODING)
        block.reveal(first)
        if not self._complete(block):
            self._open(block, first)
            self._blocks.decodes[block.attempt] = block

    def _complete(self, block: WorkerBlock) -> bool:
        """Answer the Decode call and forget the block, if it is complete."""
        completion = block.completion
        if completion is None:
            return False
        self._tuner.observe_block(completion.prefill_forwards + completion.decode_forwards)
        self._effects.append(SendCompletion(attempt=block.attempt, completion=completion))
        self._drop(block)
        return True

    # Iterations.

    def _start_iteration(self) -> None:
        decodes = self._blocks.take_turns(self._config.max_batch_size)
        decode_tokens = sum([block.decode_step_tokens for block in decodes])
        waiting = tuple(self._blocks.queued.values())
        admission = self._admit(waiting, decode_tokens)
        prefills = waiting[: admission.admitted]
        for block in prefills:
            self._blocks.dequeue(block.attempt)
            block.note_page_wait(False, self._now)
            block.move_to(Stage.PREFILLING)
            self._open(block, None)
        for head in waiting[admission.admitted : admission.admitted + 1]:
            head.note_page_wait(admission.stop is Stop.MEMORY, self._now)
        if not decodes and not prefills:
            self._tuner.pause()
            return
        for block in (*decodes, *prefills):
            block.in_forward = True
        self._running = Iteration.of(self._last.number + 1, decodes, prefills, decode_tokens, admission.tokens)
        self._effects.append(self._running.command)

    def _admit(self, waiting: tuple[WorkerBlock, ...], decode_tokens: int) -> Admission:
        """Decide how many waiting prefills join the iteration, and take their pages."""

        def reserve(index: int) -> bool:
            block = waiting[index]
            may_take = self._blocks.may_take_pages(block)
            return may_take and self._pool.allocate(block.attempt, block.pages) is not None

        prefill_tokens = [block.canvas_tokens for block in waiting]
        if self._config.role is Role.PREFILL:
            cap_tokens = self._config.max_prefill_tokens_per_batch
            return admit_prefill_batch(max_batch_tokens=cap_tokens, prefill_tokens=prefill_tokens, reserve=reserve)
        self._tuner.retune(self._budget, decode_tokens=decode_tokens, head_tokens=next(iter(prefill_tokens), 0))
        return self._budget.admit(decode_tokens=decode_tokens, prefill_tokens=prefill_tokens, reserve=reserve)

    def _iteration_completed(self, event: IterationCompleted) -> None:
        assert self._running is not None and event.iteration == self._running.number, event.iteration
        assert tuple([attempt for attempt, _ in event.deltas]) == self._running.attempts, "outcome of another batch"
        self._last, self._running = self._running, None
        self._tuner.observe(self._last, duration_s=event.duration_s, now=self._now)
        for attempt, delta in event.deltas:
            block = self._blocks[attempt]
            block.in_forward = False
            if block.stage is Stage.ZOMBIE:
                self._drop(block)
            elif self._config.role is Role.PREFILL:
                self._prefilled(block, delta)
            else:
                self._stepped(block, delta)
        self._send_report(self._report())

    def _stepped(self, block: WorkerBlock, delta: StepDelta) -> None:
        block.reveal(delta)
        self._effects.append(SendStep(attempt=block.attempt, step=delta))
        if not self._complete(block) and block.stage is Stage.PREFILLING:
            block.move_to(Stage.DECODING)
            self._blocks.decodes[block.attempt] = block

    def _prefilled(self, block: WorkerBlock, first: StepDelta) -> None:
        """Keep the K/V if a decode needs it, then answer the Prefill call."""
        block.reveal(first)
        completion = block.completion
        retained = completion is None and block.work.cache_mode is not CacheMode.NONE
        if retained:
            self._close(block)
            self._blocks.remove(block.attempt)
            canvas_tokens = block.canvas_tokens
            self._effects.append(self._retention.retain(block.attempt, canvas_tokens=canvas_tokens, now=self._now))
        else:
            self._drop(block)
        self._effects.append(
            SendPrefillResult(
                attempt=block.attempt,
                first=first,
                completion=completion,
                retained=retained,
                lease_s=self._config.kv_lease_s if retained else 0.0,
            )
        )

    # Time and reports.

    def _expire_page_waits(self) -> bool:
        """Send away the decodes that have waited too long for pages; True if there were any."""
        wait_s = self._config.kv_page_wait_s
        overdue = [block for due, block in self._blocks.page_waits(wait_s) if due <= self._now]
        for block in overdue:
            message = f"no {block.pages} free KV pages within {wait_s:g} s"
            self._end_attempt(block.attempt, Reason.NO_KV_PAGES, message)
        return bool(overdue)

    def _report(self) -> IterationReport:
        return report_of(
            role=self._config.role,
            last=self._last,
            tuner=self._tuner,
            budget=self._budget,
            blocks=self._blocks,
            free_pages=self._pool.free_pages,
            retained_blocks=len(self._retention.offered),
        )

    def _send_report(self, report: IterationReport) -> None:
        self._reported = report
        self._effects.append(Report(report=report))
