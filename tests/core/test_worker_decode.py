"""The worker core in the decode role: the three K/V sources, mixed iterations, turns, waits for pages."""

from __future__ import annotations

import pytest

from common.core.ids import Role
from common.core.params import CacheMode
from common.core.work import BlockCompletion, FinishReason, LocalPrefill, StepDelta
from common.core.worker_effects import (
    CloseBlock,
    FetchKv,
    OpenBlock,
    Report,
    RunIteration,
    SendCompletion,
    SendFailure,
    SendKvReceived,
    SendStep,
)
from common.core.worker_events import IterationCompleted, PrefillRequested
from common.errors import Reason
from tests.core.worker_shell import Effects, WorkerShell
from tests.core.worker_work import (
    EOS,
    TRANSFER,
    attempt,
    early_kv,
    first_step,
    handle_of,
    no_kv,
    remote_kv,
    step,
    work,
    worker_config,
)

A, B, C = attempt("a"), attempt("b"), attempt("c")
LOCAL = LocalPrefill()


def decode_worker(**changes: int | float) -> WorkerShell:
    return WorkerShell(worker_config(Role.DECODE, **changes))


def decoding(shell: WorkerShell, *names: str, max_tokens: int = 8) -> None:
    """Start these decodes from fetched K/V; the fetches end while the worker's first iteration runs, if any does."""
    for name in names:
        what = work(name, max_tokens=max_tokens)
        shell.submit(what, remote_kv(what))
        shell.fetched(what.attempt)


def runs(effects: Effects) -> list[RunIteration]:
    return [effect for effect in effects if isinstance(effect, RunIteration)]


class TestSources:
    def test_a_local_prefill_decodes_on_the_pages_it_wrote(self):
        shell = decode_worker()
        assert shell.submit(work(A), LOCAL) == [
            OpenBlock(work=work(A), page_ids=(0, 1, 2), first=None),
            RunIteration(iteration=1, decodes=(), prefills=(A,)),
        ]
        effects = shell.complete({A: {1: 3}})
        assert effects[0] == SendStep(attempt=A, step=step(0, {1: 3}))
        assert isinstance(effects[1], Report) and effects[1].report.active_decodes == 1
        assert effects[2:] == [RunIteration(iteration=2, decodes=(A,), prefills=())]
        assert runs(shell.complete({A: {0: 3, 2: 3}})) == [RunIteration(iteration=3, decodes=(A,), prefills=())]
        effects = shell.complete({A: {3: 3}})
        completion = BlockCompletion(prefill_forwards=1, decode_forwards=2, finish=None)
        assert effects[:3] == [
            SendStep(attempt=A, step=step(2, {3: 3})),
            SendCompletion(attempt=A, completion=completion),
            CloseBlock(attempt=A),
        ]
        assert shell.core.view().idle

    def test_13_a_prefill_that_completes_its_block_never_decodes(self):
        shell = decode_worker()
        shell.submit(work(A, max_tokens=4), LOCAL)
        effects = shell.complete({A: {0: 3, 1: 3, 2: 3, 3: 3}})
        completion = BlockCompletion(prefill_forwards=1, decode_forwards=0, finish=FinishReason.LENGTH)
        assert SendCompletion(attempt=A, completion=completion) in effects
        assert not runs(effects)
        assert shell.core.view().idle

    def test_remote_kv_is_fetched_then_decoded(self):
        shell = decode_worker()
        what = work(attempt("a", block=1))
        effects = shell.submit(what, remote_kv(what))
        assert effects[0] == FetchKv(attempt=what.attempt, handle=handle_of(what), page_ids=(0, 1, 2), early=False)
        assert isinstance(effects[1], Report) and effects[1].report.free_pages == 13
        effects = shell.fetched(what.attempt)
        assert effects[:3] == [
            SendKvReceived(attempt=what.attempt, transfer=TRANSFER, first=None),
            OpenBlock(work=what, page_ids=(0, 1, 2), first=first_step(what)),
            RunIteration(iteration=1, decodes=(what.attempt,), prefills=()),
        ]
        effects = shell.complete({what.attempt: {5: 3, 6: EOS}})
        completion = BlockCompletion(prefill_forwards=1, decode_forwards=1, finish=FinishReason.STOP)
        assert effects[0] == SendStep(attempt=what.attempt, step=step(1, {5: 3, 6: EOS}))
        assert effects[1] == SendCompletion(attempt=what.attempt, completion=completion)
        assert shell.core.view().idle

    def test_an_early_fetch_brings_what_the_prefill_revealed(self):
        shell = decode_worker()
        what = work(attempt("a", block=1))
        effects = shell.submit(what, early_kv(what))
        assert effects[0] == FetchKv(attempt=what.attempt, handle=handle_of(what), page_ids=(0, 1, 2), early=True)
        effects = shell.fetched(what.attempt)
        assert effects[:3] == [
            SendKvReceived(attempt=what.attempt, transfer=TRANSFER, first=first_step(what)),
            OpenBlock(work=what, page_ids=(0, 1, 2), first=first_step(what)),
            RunIteration(iteration=1, decodes=(what.attempt,), prefills=()),
        ]
        effects = shell.complete({what.attempt: {5: 3, 6: EOS}})
        completion = BlockCompletion(prefill_forwards=1, decode_forwards=1, finish=FinishReason.STOP)
        assert effects[1] == SendCompletion(attempt=what.attempt, completion=completion)
        assert shell.core.view().idle

    def test_cache_mode_none_starts_without_a_fetch(self):
        shell = decode_worker()
        what = work(A, cache_mode=CacheMode.NONE)
        assert shell.submit(what, no_kv(what)) == [
            OpenBlock(work=what, page_ids=(0, 1, 2), first=first_step(what)),
            RunIteration(iteration=1, decodes=(A,), prefills=()),
        ]

    @pytest.mark.parametrize("cache_mode", [CacheMode.NONE, CacheMode.DUAL])
    def test_a_block_complete_on_arrival_is_answered_without_a_forward(self, cache_mode):
        shell = decode_worker()
        what = work(A, max_tokens=1, cache_mode=cache_mode)
        effects = shell.submit(what, no_kv(what) if cache_mode is CacheMode.NONE else remote_kv(what))
        if cache_mode is CacheMode.DUAL:
            effects = shell.fetched(A)
        completion = BlockCompletion(prefill_forwards=1, decode_forwards=0, finish=FinishReason.LENGTH)
        assert SendCompletion(attempt=A, completion=completion) in effects
        assert not runs(effects)
        assert shell.core.view().idle

    @pytest.mark.parametrize("reason", [Reason.PEER_LOST, Reason.KV_LEASE_EXPIRED, Reason.KV_CHECKSUM])
    def test_a_failed_fetch_ends_the_call_and_frees_its_pages(self, reason):
        shell = decode_worker()
        shell.submit(work(A), remote_kv(work(A)))
        failure = shell.fetch_failed(A, reason)[0]
        assert isinstance(failure, SendFailure) and (failure.attempt, failure.reason) == (A, reason)
        assert shell.core.view().idle


class TestIterations:
    def test_decodes_go_first_then_whole_prefills_in_order(self):
        shell = decode_worker()
        decoding(shell, "a", "b")
        shell.submit(work(C), LOCAL)
        assert runs(shell.complete()) == [RunIteration(iteration=2, decodes=(A, B), prefills=(C,))]

    def test_reports_say_what_the_iteration_cost(self):
        shell = decode_worker(token_budget_tokens=18)
        decoding(shell, "a", "b")
        shell.submit(work(C), LOCAL)
        shell.submit(work("d"), LOCAL)
        shell.complete()  # iteration 2: 2 decodes of 4 tokens, budget left 10; the head of 12 waits
        shell.complete()  # iteration 3: 10 + 10 admit it, 8 left
        report = shell.report
        assert (report.iteration, report.decode_tokens, report.prefill_tokens_admitted) == (2, 8, 0)
        assert (report.queued_prefills, report.queued_prefill_tokens, report.deficit_tokens) == (2, 24, 10)
        shell.complete()
        report = shell.report
        assert (report.decode_tokens, report.prefill_tokens_admitted, report.deficit_tokens) == (8, 12, 8)

    def test_a_smaller_prefill_never_passes_the_head(self):
        shell = decode_worker(token_budget_tokens=16)
        decoding(shell, "a")
        shell.submit(work(B, prompt_tokens=20), LOCAL)
        shell.submit(work(C, prompt_tokens=1), LOCAL)
        assert runs(shell.complete()) == [RunIteration(iteration=2, decodes=(A,), prefills=())]
        assert shell.core.view().queued_prefills == (B, C)

    def test_without_decodes_an_oversized_prefill_runs_alone(self):
        shell = decode_worker(token_budget_tokens=8)
        (_, run) = shell.submit(work(A, prompt_tokens=40), LOCAL)
        assert run == RunIteration(iteration=1, decodes=(), prefills=(A,))

    @pytest.mark.parametrize(
        ("cache_mode", "decode_tokens"), [(CacheMode.DUAL, 4), (CacheMode.PREFIX, 8), (CacheMode.NONE, 12)]
    )
    def test_a_decode_costs_what_it_queries(self, cache_mode, decode_tokens):
        shell = decode_worker()
        shell.submit(work(A, cache_mode=cache_mode), LOCAL)
        shell.complete()
        shell.complete()
        assert shell.report.decode_tokens == decode_tokens

    def test_more_decodes_than_the_batch_holds_take_turns(self):
        shell = decode_worker(max_batch_size=2)
        decoding(shell, "a", "b", "c")
        batches = [shell.batch.decodes]
        for _ in range(3):
            batches.append(runs(shell.complete())[0].decodes)
        assert batches == [(A,), (A, B), (C, A), (B, C)]

    def test_the_deficit_does_not_survive_idleness(self):
        shell = decode_worker()
        shell.submit(work(A, max_tokens=4), LOCAL)
        assert shell.core.view().deficit_tokens == 64 - 8
        shell.complete({A: {0: 3, 1: 3, 2: 3, 3: 3}})
        assert shell.core.view().deficit_tokens == 0
        assert shell.report.deficit_tokens == 0

    def test_a_prefill_is_admitted_however_many_decodes_are_fed_from_outside(self):
        """Budget 16, decodes of 20 tokens a turn: the share of 2 earns a canvas of 24 in 12 turns."""
        shell = decode_worker(token_budget_tokens=16, pages_total=64)
        number = 0

        def feed() -> None:
            nonlocal number
            number += 1
            what = work(f"fed{number}", prompt_tokens=12, cache_mode=CacheMode.NONE)
            shell.submit(what, no_kv(what))

        feed()
        shell.submit(work(A, prompt_tokens=16), LOCAL)
        for _ in range(12):
            feed()
            (run,) = runs(shell.complete())
            assert len(run.decodes) * 20 >= 16 and not run.prefills
        feed()
        (run,) = runs(shell.complete())
        assert run.prefills == (A,)

    @pytest.mark.parametrize("deltas", [(), ((B, step(1, {1: 3})),)])
    def test_the_outcome_of_another_batch_is_a_bug(self, deltas):
        shell = decode_worker()
        decoding(shell, "a")
        event = IterationCompleted(iteration=1, deltas=deltas, duration_s=0.0)
        with pytest.raises(AssertionError):
            shell.core.handle(event, shell.now)

    def test_the_outcome_of_another_iteration_is_a_bug(self):
        shell = decode_worker()
        decoding(shell, "a")
        delta = StepDelta(step=1, positions=(1,), token_ids=(3,), confidences=(0.5,))
        with pytest.raises(AssertionError):
            shell.core.handle(IterationCompleted(iteration=2, deltas=((A, delta),), duration_s=0.0), shell.now)


class TestPages:
    """16 pages of 4 tokens; `big` takes 12 of them."""

    def big(self, shell: WorkerShell) -> None:
        what = work("big", prompt_tokens=40)
        shell.submit(what, remote_kv(what))
        shell.fetched(what.attempt)

    def finish_big(self, shell: WorkerShell) -> Effects:
        return shell.complete({attempt("big"): {1: 3, 2: 3, 3: 3}})

    def test_a_decode_waits_for_pages_and_then_fetches(self):
        shell = decode_worker()
        self.big(shell)
        what = work(A, prompt_tokens=12)  # 5 pages, 4 free
        assert shell.submit(what, remote_kv(what)) == []
        assert any(isinstance(effect, FetchKv) and effect.attempt == A for effect in self.finish_big(shell))

    def test_it_is_sent_elsewhere_when_pages_do_not_come_in_time(self):
        shell = decode_worker()
        self.big(shell)
        what = work(A, prompt_tokens=12)
        shell.submit(what, remote_kv(what))
        assert shell.core.next_wakeup() == shell.now + 2.0
        (failure,) = shell.wait(2.0)
        assert isinstance(failure, SendFailure) and (failure.attempt, failure.reason) == (A, Reason.NO_KV_PAGES)
        assert shell.core.view().waiting_pages == ()
        self.finish_big(shell)
        assert shell.core.view().idle

    def test_a_local_prefill_that_memory_stops_is_sent_elsewhere_too(self):
        shell = decode_worker()
        self.big(shell)
        shell.submit(work(A, prompt_tokens=12), LOCAL)
        shell.complete()  # the next iteration is planned without it
        (failure,) = shell.wait(2.0)
        assert isinstance(failure, SendFailure) and (failure.attempt, failure.reason) == (A, Reason.NO_KV_PAGES)

    def test_a_local_prefill_that_the_budget_stops_waits_on(self):
        shell = decode_worker(token_budget_tokens=8)
        decoding(shell, "a")
        shell.submit(work(B), LOCAL)
        shell.complete()
        assert shell.wait(60.0) == []
        assert shell.core.view().queued_prefills == (B,)

    def test_pages_go_in_order_of_arrival_between_waiting_decodes(self):
        shell = decode_worker()
        self.big(shell)
        large, small = work(A, prompt_tokens=12), work(B)
        shell.submit(large, remote_kv(large))
        shell.submit(small, remote_kv(small))  # 3 pages are free, but it is not its turn
        assert shell.core.view().waiting_pages == (A, B)

    def test_a_small_local_prefill_does_not_take_pages_from_an_older_decode(self):
        shell = decode_worker()
        self.big(shell)
        large = work(A, prompt_tokens=12)
        shell.submit(large, remote_kv(large))
        shell.submit(work(B), LOCAL)
        assert not runs(shell.complete())[0].prefills
        effects = shell.complete({attempt("big"): {2: 3, 3: 3}})
        assert [type(effect) for effect in effects if isinstance(effect, FetchKv | RunIteration)] == [
            FetchKv,
            RunIteration,
        ]

    def test_a_small_decode_does_not_take_pages_from_an_older_prefill(self):
        shell = decode_worker()
        self.big(shell)
        shell.submit(work(A, prompt_tokens=12), LOCAL)
        shell.complete()
        small = work(B)
        assert shell.submit(small, remote_kv(small)) == []
        effects = shell.complete({attempt("big"): {2: 3, 3: 3}})
        assert runs(effects)[0].prefills == (A,)
        assert any(isinstance(effect, FetchKv) and effect.attempt == B for effect in effects)

    def test_a_pool_too_small_for_the_load_still_answers_every_call(self):
        shell = decode_worker(pages_total=4, kv_page_wait_s=1000.0)
        for number in range(12):
            what = work(f"r{number}")
            shell.submit(what, LOCAL if number % 2 else remote_kv(what))
        shell.settle()
        assert all(call.completion(EOS) is not None for call in shell.books.calls.values())


def test_a_canvas_larger_than_the_pool_is_refused_at_once():
    shell = decode_worker()
    what = work(A, prompt_tokens=57)
    (failure,) = shell.submit(what, remote_kv(what))
    assert isinstance(failure, SendFailure) and failure.reason is Reason.NO_KV_PAGES


def test_a_call_refused_for_want_of_pages_may_come_back_as_the_same_attempt():
    shell = decode_worker()
    big = work("big", prompt_tokens=40)
    shell.submit(big, LOCAL)
    what = work(A, prompt_tokens=12)
    shell.submit(what, remote_kv(what))
    shell.wait(2.0)
    shell.submit(what, remote_kv(what))
    assert shell.core.view().waiting_pages == (A,)


def test_a_prefill_call_has_no_place_here():
    shell = decode_worker()
    with pytest.raises(AssertionError):
        shell.core.handle(PrefillRequested(work=work(A)), shell.now)


class TestAdaptiveBudget:
    def test_the_worker_follows_its_measurements_and_says_so(self):
        shell = decode_worker(token_budget_adapts=True, pages_total=400)
        assert shell.core.view().token_budget_tokens == shell.config.token_budget_tokens
        shell.submit(work("a", max_tokens=4), LOCAL)
        for _ in range(4):
            shell.complete()
        # The next prefill is planned before anything is known of a prefill's cost beside a decode's.
        shell.submit(work("b", prompt_tokens=200), LOCAL)
        shell.complete()
        assert shell.report.token_budget_adapts and shell.report.wanted_blocks >= 2
        shell.submit(work("c", prompt_tokens=400), LOCAL)
        # While b decodes, c is let in at once: the budget is that of its canvas and of b's step.
        assert runs(shell.complete())[-1].prefills == (C,)
        assert shell.core.view().token_budget_tokens == 408 + 4

    def test_a_fixed_budget_is_reported_as_such(self):
        shell = decode_worker()
        shell.submit(work("a"), LOCAL)
        shell.complete()
        assert not shell.report.token_budget_adapts
        assert shell.report.token_budget_tokens == shell.config.token_budget_tokens
