"""The worker core in the prefill role: what it runs, keeps, answers and frees."""

from __future__ import annotations

import pytest

from common.core.ids import Role
from common.core.params import CacheMode
from common.core.work import BlockCompletion, FinishReason, IterationReport
from common.core.worker_effects import (
    CloseBlock,
    ForgetKv,
    OpenBlock,
    Report,
    RetainKv,
    RunIteration,
    SendFailure,
    SendPrefillResult,
)
from common.core.worker_events import DecodeRequested, KvSendEnded, KvSendStarted
from common.errors import Reason
from tests.core.worker_shell import WorkerShell
from tests.core.worker_work import EOS, attempt, no_kv, step, work, worker_config

A, B, C = attempt("a"), attempt("b"), attempt("c")


def prefill_worker(**changes: int | float) -> WorkerShell:
    return WorkerShell(worker_config(Role.PREFILL, **changes))


def retained(shell: WorkerShell, *names: str) -> None:
    """Run these prefills up to the point where their K/V is on offer."""
    for name in names:
        shell.submit(work(name))
        shell.complete()


def test_a_prefill_runs_and_its_kv_is_kept_under_lease():
    shell = prefill_worker()
    assert shell.submit(work(A)) == [
        OpenBlock(work=work(A), page_ids=(0, 1, 2), first=None),
        RunIteration(iteration=1, decodes=(), prefills=(A,)),
    ]
    first = step(0, {0: 5, 2: 7})
    assert shell.complete({A: {0: 5, 2: 7}}) == [
        CloseBlock(attempt=A),
        RetainKv(attempt=A, page_ids=(0, 1, 2), canvas_tokens=12, lease_s=30.0),
        SendPrefillResult(attempt=A, first=first, completion=None, retained=True, lease_s=30.0),
        Report(
            report=IterationReport(
                iteration=1,
                duration_s=0.01,
                decode_tokens=0,
                prefill_tokens_admitted=12,
                deficit_tokens=0,
                free_pages=13,
                active_decodes=0,
                queued_prefills=0,
                queued_prefill_tokens=0,
                retained_blocks=1,
            )
        ),
    ]
    assert shell.core.view().retained == (A,)


@pytest.mark.parametrize(
    ("max_tokens", "ignore_eos", "tokens", "finish"),
    [
        (8, False, {0: 3, 1: 3, 2: 3, 3: 3}, None),
        (4, False, {0: 3, 1: 3, 2: 3, 3: 3}, FinishReason.LENGTH),
        (2, False, {0: 3, 1: 3}, FinishReason.LENGTH),
        (8, False, {0: 3, 1: EOS}, FinishReason.STOP),
        (4, True, {0: 3, 1: EOS, 2: 3, 3: 3}, FinishReason.LENGTH),
    ],
)
def test_a_block_that_its_prefill_completes_keeps_no_kv(max_tokens, ignore_eos, tokens, finish):
    shell = prefill_worker()
    what = work(A, max_tokens=max_tokens, ignore_eos=ignore_eos)
    shell.submit(what)
    effects = shell.complete({A: tokens})
    completion = BlockCompletion(prefill_forwards=1, decode_forwards=0, finish=finish)
    answer = SendPrefillResult(attempt=A, first=step(0, tokens), completion=completion, retained=False, lease_s=0.0)
    assert effects[:2] == [CloseBlock(attempt=A), answer]
    assert shell.core.view().idle


@pytest.mark.parametrize("tokens", [{1: EOS}, {0: 3, 2: EOS}])
def test_an_eos_behind_a_masked_position_does_not_complete_the_block(tokens):
    shell = prefill_worker()
    shell.submit(work(A))
    shell.complete({A: tokens})
    assert shell.core.view().retained == (A,)


def test_cache_mode_none_retains_nothing():
    shell = prefill_worker()
    shell.submit(work(A, cache_mode=CacheMode.NONE))
    effects = shell.complete({A: {0: 3}})
    answer = SendPrefillResult(attempt=A, first=step(0, {0: 3}), completion=None, retained=False, lease_s=0.0)
    assert answer in effects
    assert shell.core.view().idle


def test_a_batch_takes_the_first_and_whatever_fits_the_cap_in_order():
    shell = prefill_worker(max_prefill_tokens_per_batch=30)
    shell.submit(work("running"))
    for which, prompt_tokens in ((A, 28), (B, 4), (C, 4), (attempt("d"), 4)):
        shell.submit(work(which, prompt_tokens=prompt_tokens))
    batches = []
    for _ in range(3):
        effects = shell.complete()
        batches += [effect.prefills for effect in effects if isinstance(effect, RunIteration)]
        for offered in shell.core.view().retained:
            shell.release(offered)
    assert batches == [(A,), (B, C), (attempt("d"),)]


def test_a_head_without_pages_holds_back_a_smaller_one_until_pages_return():
    shell = prefill_worker()
    shell.submit(work("a", prompt_tokens=40))  # 12 of 16 pages
    shell.complete()
    assert shell.submit(work("b", prompt_tokens=16)) != []  # needs 6, free 4: only a report
    shell.submit(work("c", prompt_tokens=4))  # needs 3
    assert shell.core.view().queued_prefills == (B, C)
    effects = shell.release(A)
    assert effects[0] == ForgetKv(attempt=A)
    assert RunIteration(iteration=2, decodes=(), prefills=(B, C)) in effects


def test_a_prefill_call_waits_for_pages_as_long_as_leases_last():
    shell = prefill_worker()
    shell.submit(work("a", prompt_tokens=40))
    shell.complete()
    shell.submit(work("b", prompt_tokens=16))
    assert not any(isinstance(effect, SendFailure) for effect in shell.wait(29.5))
    effects = shell.wait(1.0)
    assert effects[0] == ForgetKv(attempt=A)
    assert RunIteration(iteration=2, decodes=(), prefills=(B,)) in effects


def test_a_canvas_larger_than_the_pool_is_refused_at_once():
    shell = prefill_worker()
    (failure,) = shell.submit(work("a", prompt_tokens=57))  # 65 tokens, 17 pages
    assert isinstance(failure, SendFailure) and failure.reason is Reason.NO_KV_PAGES
    shell.submit(work("b", prompt_tokens=56))
    assert shell.books.running is not None


class TestLeases:
    def test_the_core_asks_to_be_woken_at_the_end_of_the_oldest_lease(self):
        shell = prefill_worker()
        assert shell.core.next_wakeup() is None
        retained(shell, "a")
        shell.now += 10.0
        retained(shell, "b")
        assert shell.core.next_wakeup() == 130.0
        effects = shell.wait(20.0)
        assert effects[0] == ForgetKv(attempt=A)
        assert shell.core.view().retained == (B,)
        assert shell.core.next_wakeup() == 140.0

    def test_expired_pages_are_free_and_reported(self):
        shell = prefill_worker()
        retained(shell, "a")
        effects = shell.wait(30.0)
        assert [type(effect) for effect in effects] == [ForgetKv, Report]
        assert isinstance(effects[1], Report) and effects[1].report.free_pages == 16

    def test_a_lease_does_not_end_while_a_send_reads_the_pages(self):
        shell = prefill_worker()
        retained(shell, "a")
        shell.send_started(A)
        assert shell.wait(40.0) == []
        assert shell.free_pages == 13
        assert shell.send_ended(A)[0] == ForgetKv(attempt=A)
        assert shell.free_pages == 16

    def test_a_send_that_failed_within_the_lease_leaves_the_offer(self):
        shell = prefill_worker()
        retained(shell, "a")
        shell.send_started(A)
        assert shell.send_ended(A) == []
        assert shell.core.view().retained == (A,)

    @pytest.mark.parametrize("ack_first", [True, False])
    def test_released_pages_return_when_the_last_send_has_ended(self, ack_first):
        shell = prefill_worker()
        retained(shell, "a")
        shell.send_started(A)
        shell.send_started(A)
        shell.send_ended(A)
        if ack_first:
            assert shell.release(A)[0] == ForgetKv(attempt=A)
            assert (shell.free_pages, shell.core.view().withdrawn) == (13, (A,))
            shell.send_ended(A)
        else:
            shell.send_ended(A)
            assert shell.release(A)[0] == ForgetKv(attempt=A)
        assert shell.core.view().idle

    def test_releasing_twice_or_something_unknown_changes_nothing(self):
        shell = prefill_worker()
        retained(shell, "a", "b")
        shell.release(A)
        assert shell.release(A) == []
        assert shell.release(C) == []
        assert (shell.free_pages, shell.core.view().retained) == (13, (B,))

    def test_only_what_is_on_offer_may_be_sent(self):
        shell = prefill_worker()
        retained(shell, "a")
        shell.send_started(A)
        shell.release(A)
        for event in (KvSendStarted(attempt=A), KvSendStarted(attempt=B), KvSendEnded(attempt=B)):
            with pytest.raises(AssertionError):
                shell.core.handle(event, shell.now)


class TestAttempts:
    def test_a_newer_attempt_takes_the_place_of_a_queued_one(self):
        shell = prefill_worker()
        shell.submit(work("running"))
        shell.submit(work(A))
        newer = attempt("a", attempt=1)
        (failure,) = shell.submit(work(newer))
        assert isinstance(failure, SendFailure)
        assert (failure.attempt, failure.reason) == (A, Reason.STALE_ATTEMPT)
        assert shell.core.view().queued_prefills == (newer,)

    def test_a_newer_attempt_frees_the_kv_retained_for_an_older_one(self):
        shell = prefill_worker()
        retained(shell, "a")
        assert shell.submit(work(attempt("a", attempt=1)))[0] == ForgetKv(attempt=A)
        shell.complete()
        assert shell.core.view().retained == (attempt("a", attempt=1),)
        assert shell.free_pages == 13

    @pytest.mark.parametrize("number", [0, 1])
    def test_an_equal_or_older_attempt_is_refused(self, number):
        shell = prefill_worker()
        shell.submit(work(attempt("a", attempt=1)))
        shell.complete()
        (failure,) = shell.submit(work(attempt("a", attempt=number)))
        assert isinstance(failure, SendFailure) and failure.reason is Reason.STALE_ATTEMPT
        assert shell.core.view().retained == (attempt("a", attempt=1),)

    def test_other_blocks_and_other_requests_are_no_rivals(self):
        shell = prefill_worker()
        retained(shell, "a")
        shell.submit(work(attempt("a", block=1)))
        shell.complete()
        retained(shell, "b")
        assert shell.core.view().retained == (A, attempt("a", block=1), B)


def test_a_decode_call_has_no_place_here():
    shell = prefill_worker()
    with pytest.raises(AssertionError):
        shell.core.handle(DecodeRequested(work=work(A), source=no_kv(work(A))), shell.now)


def test_the_end_of_the_life_drops_everything_that_nothing_touches():
    shell = prefill_worker()
    retained(shell, "a", "b")
    shell.send_started(B)
    shell.submit(work("c"))
    shell.submit(work("d", prompt_tokens=30))
    effects = shell.end_life()
    assert {effect.reason for effect in effects if isinstance(effect, SendFailure)} == {Reason.STALE_INCARNATION}
    view = shell.core.view()
    assert (view.retained, view.withdrawn, view.zombies, view.queued_prefills) == ((), (B,), (C,), ())
    assert view.free_pages == 10
    shell.complete()
    shell.send_ended(B)
    assert shell.core.view().idle
    retained(shell, "c")
    assert shell.core.view().retained == (C,)
