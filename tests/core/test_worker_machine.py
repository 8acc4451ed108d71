"""The worker core under random events, and mutants of it that the same run must find."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import common.core.worker as worker_module
from tests.core import test_worker_cancel as cancel
from tests.core import test_worker_decode as decode
from tests.core import test_worker_prefill as prefill
from tests.core.worker_machine import WorkerMachine

SETTINGS = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_random_lives_keep_pages_progress_and_budget():
    run_state_machine_as_test(WorkerMachine, settings=SETTINGS)


MUTANTS = {
    "admits past the budget": (
        "token_budget",
        "tokens + canvas_tokens > fresh_tokens + self._deficit_tokens",
        "tokens > fresh_tokens + self._deficit_tokens",
    ),
    "keeps the deficit when idle": (
        "token_budget",
        "self._deficit_tokens = self._head_credit_tokens = 0",
        "self._head_credit_tokens = 0",
    ),
    "lets a prefill starve": ("token_budget", "self._head_credit_tokens += self.min_share_tokens", "pass"),
    "spends the credit of waiting twice": (
        "token_budget",
        "            self._head_credit_tokens = 0",
        "            pass",
    ),
    "banks the fresh budget in a memory stall": (
        "token_budget",
        "max(0, self._deficit_tokens - max(0, admission.tokens - fresh_tokens))",
        "left_tokens",
    ),
    "lets a smaller prefill pass the head": (
        "worker",
        "waiting = tuple(self._blocks.queued.values())",
        "waiting = tuple(sorted(self._blocks.queued.values(), key=lambda block: block.work.canvas_tokens))",
    ),
    "frees the pages of a zombie in a forward": ("worker", "elif block.in_forward:", "elif False:"),
    "frees the pages of a zombie in a fetch": ("worker", "if block.stage is Stage.FETCHING:", "if False:"),
    "keeps the pages of a cancelled block": (
        "worker",
        "            self._pool.release(block.attempt)",
        "            pass",
    ),
    "decodes a zombie on": (
        "worker",
        "            if block.stage is Stage.ZOMBIE:\n                self._drop(block)\n            elif",
        "            if",
    ),
    "drops the attempt check": ("worker", "if newest >= work.attempt.attempt:", "if False:"),
    "runs a superseded attempt on": ("worker", "for attempt in older:", "for attempt in []:"),
    "never gives up waiting for pages": ("worker", "if due <= self._now", "if False"),
    "never lets a lease expire": ("worker", "self._effects += self._retention.expire(now)", "pass"),
    "frees pages that a send reads": (
        "kv_retention",
        "if block.sends or block.phase is _Phase.OFFERED:",
        "if block.phase is _Phase.OFFERED:",
    ),
    "frees pages that an early send reads": (
        "worker",
        "if self._pool.pages_of(block.attempt) and not self._retention.keep_while_sent(block.attempt):",
        "if self._pool.pages_of(block.attempt):",
    ),
    "forgets early sends at the offer": (
        "kv_retention",
        "block = self._blocks.setdefault(attempt, _Lent(phase=_Phase.COMPUTING))",
        "block = self._blocks[attempt] = _Lent(phase=_Phase.COMPUTING)",
    ),
    "keeps what an early fetch brought to itself": (
        "worker",
        "news = first if block.source.early else None",
        "news = None",
    ),
    "lets a lease expire under a send": (
        "kv_retention",
        "if block.phase is _Phase.OFFERED and not block.sends]",
        "if block.phase is _Phase.OFFERED]",
    ),
    "withdraws twice": ("kv_retention", "if block is None or block.phase is not _Phase.OFFERED:", "if block is None:"),
    "hands a page out twice": (
        "page_pool",
        "self._free_runs.append((start + taken, end))",
        "self._free_runs.append((start, end))",
    ),
    "serves the same decodes for ever": (
        "worker_blocks",
        "self.decodes[block.attempt] = self.decodes.pop(block.attempt)",
        "pass",
    ),
    "gives pages past an older decode": (
        "worker_blocks",
        "return waiter is None or waiter.arrival > prefill.arrival",
        "return True",
    ),
    "counts the prefill as a decode forward": (
        "worker_block",
        "self.decode_forwards += delta.step > 0",
        "self.decode_forwards += 1",
    ),
    "retains K/V that no decode needs": (
        "worker",
        "completion is None and block.work.cache_mode is not CacheMode.NONE",
        "completion is None",
    ),
}
CLASSES = {
    "token_budget": "DeficitTokenBudget",
    "kv_retention": "KvRetention",
    "page_pool": "PagePool",
    "worker_blocks": "WorkerBlocks",
    "worker_block": "WorkerBlock",
    "worker": "WorkerCore",
}


SCENARIOS: tuple[Callable[[], None], ...] = (
    cancel.test_a_hundred_cancels_at_random_moments_leave_a_clean_worker,
    cancel.test_a_newer_attempt_runs_beside_the_zombie_of_an_older_one,
    cancel.test_pages_of_a_zombie_are_not_given_to_others,
    cancel.test_retained_kv_that_a_send_reads_returns_when_the_send_ends,
    decode.TestIterations().test_a_prefill_is_admitted_however_many_decodes_are_fed_from_outside,
    decode.TestIterations().test_a_smaller_prefill_never_passes_the_head,
    decode.TestIterations().test_more_decodes_than_the_batch_holds_take_turns,
    decode.TestPages().test_a_small_local_prefill_does_not_take_pages_from_an_older_decode,
    decode.TestPages().test_it_is_sent_elsewhere_when_pages_do_not_come_in_time,
    prefill.TestLeases().test_a_lease_does_not_end_while_a_send_reads_the_pages,
    prefill.TestLeases().test_releasing_twice_or_something_unknown_changes_nothing,
    prefill.TestAttempts().test_a_newer_attempt_frees_the_kv_retained_for_an_older_one,
)


def install(monkeypatch: pytest.MonkeyPatch, module_name: str, old: str, new: str) -> None:
    """Let the worker core use that module with `old` (which must occur once) replaced."""
    original = importlib.import_module(f"common.core.{module_name}")
    source = inspect.getsource(original)
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times: the mutant is out of date"
    # Named like the original, because dataclasses look their module up.
    mutant = types.ModuleType(original.__name__)
    exec(compile(source.replace(old, new), str(original.__file__), "exec"), mutant.__dict__)
    name = CLASSES[module_name]
    mutant_class = getattr(mutant, name)
    # Enums and values are compared by identity: share all but the mutant class.
    mutant.__dict__.update({key: value for key, value in vars(original).items() if key != name})
    monkeypatch.setattr(worker_module, name, mutant_class)


def run_suite(examples: int) -> None:
    """Hand-written scenarios first (they are fast), then random lives."""
    for scenario in SCENARIOS:
        scenario()
    quick = settings(
        SETTINGS, max_examples=examples, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
    )
    run_state_machine_as_test(WorkerMachine, settings=quick)


def test_a_copy_without_a_mutation_survives(monkeypatch):
    for module_name in CLASSES:
        install(monkeypatch, module_name, "from __future__ import annotations", "from __future__ import annotations")
        run_suite(examples=5)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_does_not_survive(name, monkeypatch):
    install(monkeypatch, *MUTANTS[name])
    with pytest.raises((AssertionError, KeyError, ValueError)):
        run_suite(examples=200)
