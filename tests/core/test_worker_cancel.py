"""Cancelling in every state: pages are back within one iteration, and nothing is heard of the attempt again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.core.ids import Role
from common.core.params import CacheMode
from common.core.work import LocalPrefill
from common.core.worker_effects import AbortFetch, CloseBlock, ForgetKv, Report, RunIteration, SendFailure
from common.errors import Reason
from tests.core.worker_shell import WorkerShell
from tests.core.worker_work import attempt, no_kv, remote_kv, work, worker_config

A, B = attempt("a"), attempt("b")


def worker(role: Role, **changes: int | float) -> WorkerShell:
    return WorkerShell(worker_config(role, **changes))


def queued_prefill() -> WorkerShell:
    shell = worker(Role.PREFILL)
    shell.submit(work("other"))
    shell.submit(work(A))
    return shell


def queued_local_prefill() -> WorkerShell:
    shell = worker(Role.DECODE)
    shell.submit(work("other"), LocalPrefill())
    shell.submit(work(A), LocalPrefill())
    return shell


def waiting_for_pages() -> WorkerShell:
    shell = worker(Role.DECODE)
    shell.submit(work("other", prompt_tokens=40), LocalPrefill())
    what = work(A, prompt_tokens=12)
    shell.submit(what, remote_kv(what))
    return shell


def decoding_out_of_turn() -> WorkerShell:
    shell = worker(Role.DECODE, max_batch_size=1)
    for name in ("other", "a"):
        what = work(name, cache_mode=CacheMode.NONE)
        shell.submit(what, no_kv(what))
    return shell


@pytest.mark.parametrize("state", [queued_prefill, queued_local_prefill, waiting_for_pages, decoding_out_of_turn])
def test_what_nothing_touches_goes_at_once(state: Callable[[], WorkerShell]):
    shell = state()
    others = len(shell.books.pages.get(attempt("other"), ()))
    effects = shell.cancel(A)
    assert effects == ([CloseBlock(attempt=A)] if state is decoding_out_of_turn else [])
    assert shell.free_pages == 16 - others
    shell.settle()


def prefilling() -> WorkerShell:
    shell = worker(Role.PREFILL)
    shell.submit(work(A))
    return shell


def prefilling_locally() -> WorkerShell:
    shell = worker(Role.DECODE)
    shell.submit(work(A), LocalPrefill())
    return shell


def decoding() -> WorkerShell:
    shell = worker(Role.DECODE)
    shell.submit(work(A), remote_kv(work(A)))
    shell.fetched(A)
    return shell


@pytest.mark.parametrize("state", [prefilling, prefilling_locally, decoding])
@pytest.mark.parametrize("completes", [False, True])
def test_what_a_forward_touches_goes_when_it_ends(state: Callable[[], WorkerShell], completes):
    shell = state()
    assert shell.cancel(A) == []
    assert (shell.free_pages, shell.core.view().zombies) == (13, (A,))
    assert shell.cancel(A) == []
    masked = shell.books.calls[A].masked
    effects = shell.complete({A: dict.fromkeys(masked if completes else masked[:1], 3)})
    assert effects[0] == CloseBlock(attempt=A)
    assert all(isinstance(effect, Report) for effect in effects[1:])
    assert shell.core.view().idle


@pytest.mark.parametrize("arrives", [True, False])
def test_what_a_fetch_writes_goes_when_it_has_stopped(arrives):
    shell = worker(Role.DECODE)
    shell.submit(work(A), remote_kv(work(A)))
    assert shell.cancel(A) == [AbortFetch(attempt=A)]
    assert (shell.free_pages, shell.core.view().zombies) == (13, (A,))
    effects = shell.fetched(A) if arrives else shell.fetch_failed(A, Reason.CANCELLED)
    assert [type(effect) for effect in effects] == [Report]
    assert shell.core.view().idle


def test_pages_of_a_zombie_are_not_given_to_others():
    shell = worker(Role.DECODE)
    big = work(A, prompt_tokens=40)
    shell.submit(big, LocalPrefill())
    shell.cancel(A)
    what = work(B, prompt_tokens=12)
    shell.submit(what, remote_kv(what))
    assert shell.core.view().waiting_pages == (B,)
    shell.complete()
    assert shell.core.view().fetching == (B,)


def test_retained_kv_is_withdrawn_when_its_caller_went_away_before_the_answer():
    shell = prefilling()
    shell.complete()
    assert shell.cancel(A)[0] == ForgetKv(attempt=A)
    assert shell.core.view().idle


def test_retained_kv_that_a_send_reads_returns_when_the_send_ends():
    shell = prefilling()
    shell.complete()
    shell.send_started(A)
    assert shell.cancel(A)[0] == ForgetKv(attempt=A)
    assert (shell.free_pages, shell.core.view().withdrawn) == (13, (A,))
    assert [type(effect) for effect in shell.send_ended(A)] == [Report]
    assert shell.core.view().idle


def test_cancelling_what_is_unknown_or_over_changes_nothing():
    shell = prefilling_locally()
    shell.complete({A: {0: 3, 1: 3, 2: 3, 3: 3}})
    assert shell.cancel(A) == []
    assert shell.cancel(B) == []


def test_a_newer_attempt_runs_beside_the_zombie_of_an_older_one():
    shell = prefilling_locally()
    newer = attempt("a", attempt=1)
    shell.submit(work(newer), LocalPrefill())
    assert shell.core.view().zombies == (A,)
    effects = shell.complete()
    assert RunIteration(iteration=2, decodes=(), prefills=(newer,)) in effects
    shell.settle()


def test_an_attempt_may_return_once_its_zombie_is_gone():
    shell = prefilling_locally()
    shell.cancel(A)
    (refusal,) = shell.submit(work(A), LocalPrefill())
    assert isinstance(refusal, SendFailure) and refusal.reason is Reason.STALE_ATTEMPT
    shell.complete()
    assert RunIteration(iteration=2, decodes=(), prefills=(A,)) in shell.submit(work(A), LocalPrefill())


def test_a_hundred_cancels_at_random_moments_leave_a_clean_worker():
    shell = worker(Role.DECODE)
    for number in range(100):
        what = work(f"r{number}")
        shell.submit(what, remote_kv(what) if number % 3 else LocalPrefill())
        if number % 2 and shell.books.running:
            shell.complete()
        for fetching in list(shell.books.fetching)[: number % 2]:
            shell.fetched(fetching)
        shell.cancel(attempt(f"r{number - number % 5}"))
        if number % 7 == 0:
            shell.cancel(what.attempt)
    shell.settle()
    what = work("last")
    shell.submit(what, LocalPrefill())
    shell.settle()
    assert shell.books.calls[what.attempt].completion(None) is not None
