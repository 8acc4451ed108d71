"""Where the event loop and the forward thread meet at the worker's core."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from common.clock import MonotonicClock
from common.core.defaults import DEFAULT_STREAM_INTERVAL_S
from common.core.ids import BlockAttempt, RequestId, Role
from common.core.work import BlockWork, LocalPrefill, StepDelta
from common.core.worker import WorkerCore
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_effects import CloseBlock, OpenBlock, SendFailure, SendStep, WorkerEffect
from common.core.worker_events import DecodeRequested, IterationCompleted, LifeEnded, WorkCancelled, WorkerEvent
from common.worker import core_loop
from common.worker.core_loop import CoreLoop
from common.worker.forward_thread import ForwardJob
from tests.engine.runs import request
from tests.worker.harness import block_work
from tests.worker.waiting import eventually

CONFIG = WorkerCoreConfig(
    role=Role.DECODE,
    pages_total=64,
    page_size_tokens=16,
    token_budget_tokens=1024,
    token_budget_adapts=False,
    max_prefill_tokens_per_batch=4096,
    max_batch_size=128,
    kv_lease_s=30.0,
    kv_page_wait_s=5.0,
    eos_token_id=None,
)


@dataclass
class Shell:
    """A core loop whose forwards are run by hand, one at a time, on a thread of their own."""

    jobs: list[ForwardJob] = field(default_factory=list)
    performed: list[WorkerEffect] = field(default_factory=list)
    bugs: list[BaseException] = field(default_factory=list)
    steps: dict[BlockAttempt, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = WorkerCore(CONFIG)
        self.loop = CoreLoop(
            self.core,
            clock=MonotonicClock(),
            perform=self.performed.append,
            submit=self.jobs.append,
            on_bug=self.bugs.append,
        )

    def complete(self, job: ForwardJob, *, forward_s: float = 0.001) -> ForwardJob | None:
        """End `job` on a thread while the event loop is blocked; every attempt reveals its step's own position."""
        attempts = job.run.decodes + job.run.prefills
        deltas = tuple((attempt, delta(self.steps.get(attempt, 0))) for attempt in attempts)
        event = IterationCompleted(iteration=job.run.iteration, deltas=deltas, duration_s=forward_s)
        with ThreadPoolExecutor(max_workers=1) as thread:
            following = thread.submit(self.loop.complete, event).result()
        for attempt in attempts:
            self.steps[attempt] = self.steps.get(attempt, 0) + 1
        return following

    def shown(self, attempt: BlockAttempt) -> list[int]:
        """The steps that its caller was told, in order."""
        return [e.step.step for e in self.performed if isinstance(e, SendStep) and e.attempt == attempt]


def delta(step: int) -> StepDelta:
    return StepDelta(step=step, positions=(step,), token_ids=(7,), confidences=(0.5,))


def work(name: str) -> BlockWork:
    return block_work(request(request_id=RequestId(name), max_tokens=32))


def decode(name: str) -> DecodeRequested:
    return DecodeRequested(work=work(name), source=LocalPrefill())


async def test_the_next_forward_does_not_wait_for_the_event_loop() -> None:
    shell = Shell()
    shell.loop.request(decode("a"))
    (job,) = shell.jobs
    assert [type(change) for change in job.changes] == [OpenBlock]
    attempt = job.run.prefills[0]
    for iteration in (2, 3, 4):
        following = shell.complete(job)
        assert following is not None and following.run.iteration == iteration
        assert following.run.decodes == (attempt,)
        job = following
    assert len(shell.jobs) == 1, "the forward thread had its jobs from `complete`"
    await eventually(lambda: shell.shown(attempt) == [0, 1, 2])
    shell.loop.stop()


async def test_quick_steps_wait_for_each_other_and_a_slow_one_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_loop, "DEFAULT_QUICK_STEPS_WAIT_S", 3600.0)
    shell = Shell()
    shell.loop.request(decode("a"))
    attempt = shell.jobs[0].run.prefills[0]
    job = shell.complete(shell.jobs[0])
    await eventually(lambda: shell.shown(attempt) == [0])
    for _ in range(2):
        assert job is not None
        job = shell.complete(job)
    for _ in range(10):
        await asyncio.sleep(0)
    assert shell.shown(attempt) == [0], "nobody waits for these"
    assert job is not None
    assert shell.complete(job, forward_s=DEFAULT_STREAM_INTERVAL_S) is not None
    await eventually(lambda: shell.shown(attempt) == [0, 1, 2, 3])
    shell.loop.stop()


async def test_effects_keep_their_order_across_the_two_threads() -> None:
    shell = Shell()
    shell.loop.request(decode("a"))
    job = shell.jobs[0]
    attempt = job.run.prefills[0]
    for _ in range(3):
        following = shell.complete(job)
        assert following is not None
        job = following
    # Nothing of it has been performed yet; an event of the loop must not overtake it.
    shell.loop.feed(LifeEnded())
    assert shell.shown(attempt) == [0, 1, 2]
    ends = [index for index, effect in enumerate(shell.performed) if isinstance(effect, SendFailure)]
    steps = [index for index, effect in enumerate(shell.performed) if isinstance(effect, SendStep)]
    assert len(ends) == 1 and max(steps) < ends[0]
    shell.loop.stop()


async def test_blocks_that_end_on_the_loop_are_closed_by_the_next_forward() -> None:
    shell = Shell()
    shell.loop.request(decode("a"))
    shell.loop.request(decode("b"))
    job = shell.jobs[0]
    doomed = job.run.prefills[0]
    shell.loop.feed(WorkCancelled(attempt=doomed))
    following = shell.complete(job)
    assert following is not None
    assert [change.attempt for change in following.changes if isinstance(change, CloseBlock)] == [doomed]
    assert doomed not in following.run.decodes + following.run.prefills
    assert shell.shown(doomed) == []
    shell.loop.stop()


async def test_after_the_last_block_there_is_no_forward_and_every_page_is_back() -> None:
    shell = Shell()
    shell.loop.request(decode("a"))
    job = shell.jobs[0]
    shell.loop.feed(WorkCancelled(attempt=job.run.prefills[0]))
    assert shell.complete(job) is None
    assert shell.loop.view().idle
    shell.loop.check_conservation()
    shell.loop.stop()


async def test_a_bug_on_the_forward_thread_is_raised_there_and_ends_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = WorkerCore.handle

    def broken(core: WorkerCore, event: WorkerEvent, now: float) -> list[Any]:
        if isinstance(event, IterationCompleted):
            raise KeyError("a lost block")
        return handle(core, event, now)

    monkeypatch.setattr(WorkerCore, "handle", broken)
    shell = Shell()
    shell.loop.request(decode("a"))
    with pytest.raises(KeyError):
        shell.complete(shell.jobs[0])
    shell.loop.feed(LifeEnded())
    assert shell.bugs == [], "the core was not called again"
