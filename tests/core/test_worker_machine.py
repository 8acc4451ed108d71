"""The worker core under random events, and mutants of it that the same run must find."""

from __future__ import annotations

import importlib.util
import types

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import common.core.worker as worker_module
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
    "keeps the deficit when idle": ("token_budget", "if admission.admitted else 0", "if True else 0"),
    "lets a prefill starve": ("token_budget", "self._head_credit_tokens += self.min_share_tokens", "pass"),
    "spends the credit of waiting twice": ("token_budget", "            self._head_credit_tokens = 0", "            pass"),
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
    "decodes a zombie on": ("worker", "            if block.stage is Stage.ZOMBIE:\n                self._drop(block)\n            elif", "            if"),
    "drops the attempt check": ("worker", "if newest >= work.attempt.attempt:", "if False:"),
    "runs a superseded attempt on": ("worker", "for attempt in older:", "for attempt in []:"),
    "never gives up waiting for pages": ("worker", "if due <= self._now", "if False"),
    "never lets a lease expire": ("worker", "self._effects += self._retention.expire(now)", "pass"),
    "frees pages that a send reads": ("kv_retention", "if block.withdrawn and not block.sends:", "if block.withdrawn:"),
    "lets a lease expire under a send": (
        "kv_retention",
        "if not block.withdrawn and not block.sends]",
        "if not block.withdrawn]",
    ),
    "withdraws twice": ("kv_retention", "if block is None or block.withdrawn:", "if block is None:"),
    "hands a page out twice": ("page_pool", "self._free_runs.append((start + taken, end))", "self._free_runs.append((start, end))"),
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
    "counts the prefill as a decode forward": ("worker_block", "self.decode_forwards += delta.step > 0", "self.decode_forwards += 1"),
    "retains K/V that no decode needs": ("worker", "completion is None and block.work.cache_mode is not CacheMode.NONE", "completion is None"),
}
CLASSES = {
    "token_budget": "DeficitTokenBudget",
    "kv_retention": "KvRetention",
    "page_pool": "PagePool",
    "worker_blocks": "WorkerBlocks",
    "worker_block": "WorkerBlock",
    "worker": "WorkerCore",
}


def mutated(module_name: str, old: str, new: str) -> types.ModuleType:
    """That module of the core with `old` (which occurs once) replaced."""
    spec = importlib.util.find_spec(f"common.core.{module_name}")
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times: the mutant is out of date"
    module = types.ModuleType(f"mutant_{module_name}")
    # dataclasses look their module up by name.
    module.__dict__["__name__"] = f"common.core.{module_name}"
    exec(compile(source.replace(old, new), spec.origin, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_does_not_survive(name, monkeypatch):
    module_name, old, new = MUTANTS[name]
    mutant = mutated(module_name, old, new)
    monkeypatch.setattr(worker_module, CLASSES[module_name], getattr(mutant, CLASSES[module_name]))
    quick = settings(SETTINGS, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        run_state_machine_as_test(WorkerMachine, settings=quick)
