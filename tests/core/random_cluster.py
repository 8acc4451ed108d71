"""Drives a `SchedulerOracle` with random happenings, then lets everything come to rest."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from common.core.cluster import WorkerSpec
from common.core.ids import Role, ServingMode
from common.core.options import Dispatch, QueueOrder
from common.core.params import CacheMode
from common.core.placement import COLOCATED_POLICIES, DECODE_POLICIES, PREFILL_POLICIES
from common.core.scheduler_config import SchedulerConfig
from common.errors import Reason
from tests.core.samples import iteration_report, request_spec, worker_spec
from tests.core.scheduler_oracle import SchedulerOracle
from tests.core.violation import require

FAILURES = [
    Reason.NO_KV_PAGES,
    Reason.NO_KV_PAGES,
    Reason.PEER_LOST,
    Reason.KV_LEASE_EXPIRED,
    Reason.STALE_ATTEMPT,
    Reason.KV_CHECKSUM,
    Reason.KV_NOT_FOUND,
    Reason.INTERNAL,
]
PREFILL_PAGES = (8, 20)
DECODE_PAGES = 14
MOST_WORKERS = 3


class RandomCluster:
    """One happening per method; each takes its choices from `rng`, so a seed replays."""

    def __init__(self, mode: ServingMode, rng: random.Random, **options: Any) -> None:
        config = SchedulerConfig(
            mode=mode,
            **{
                "overload_threshold_tokens": 40,
                "max_attempts": 4,
                "kv_overlap": True,
                "min_kept_share": 0.0,
                **options,
            },
        )
        self.rng = rng
        self.oracle = SchedulerOracle(config)
        self.submitted = 0

    def run(self, happenings: int) -> None:
        """Start some workers, then let things happen."""
        for _ in range(4):
            self.start_worker()
        choices = [self.submit] * 4 + [self.answer] * 10 + [self.fail, self.cancel, self.advance, self.echo, self.echo]
        choices += [self.want]
        rare = [self.start_worker, self.start_worker, self.lose, self.drain, self.end_lease, self.repeat_worker]
        for _ in range(happenings):
            self.rng.choice(rare if self.rng.random() < 0.08 else choices)()

    def rest(self) -> None:
        """No more trouble: fresh workers come, every call is answered, every request must end."""
        oracle = self.oracle
        for index in range(MOST_WORKERS):
            self._start(Role.PREFILL, index)
            self._start(Role.DECODE, index)
        for _ in range(20_000):
            if not oracle.requests:
                break
            oracle.advance(0.5 if not oracle.calls else 0.0)
            for call_id in list(oracle.calls):
                if call_id in oracle.calls:
                    oracle.answer(call_id, self.rng)
        require(not oracle.requests, f"never ended: {list(oracle.requests)}")
        view = oracle.core.view()
        require(all(worker.pages_free == worker.spec.pages_total for worker in view.workers), "pages held when idle")
        require(view.queued_blocks == view.waiting_decode_blocks == view.parked_blocks == 0, "lines when idle")

    def submit(self) -> None:
        """A new request, sometimes with the id of a living one, sometimes too long."""
        rng = self.rng
        self.submitted += 1
        name = f"r{self.submitted}"
        if self.oracle.requests and rng.random() < 0.05:
            name = rng.choice(list(self.oracle.requests))
        block = rng.choice([2, 4, 8])
        spec = request_spec(
            name,
            prompt=rng.randint(1, 70 if rng.random() < 0.05 else 30),
            max_tokens=rng.randint(1, 3 * block),
            block=block,
            cache=rng.choice([CacheMode.DUAL, CacheMode.PREFIX, CacheMode.NONE]),
            deadline_s=rng.choice([None, None, None, 6.0]),
        )
        self.oracle.submit(replace(spec, tenant=rng.choice(["", "a", "a", "b"]), priority=rng.choice([0, 0, 0, 1, -1])))

    def answer(self) -> None:
        """Some call gets on."""
        if self.oracle.calls:
            call_id = self.rng.choice(list(self.oracle.calls))
            self.oracle.answer(call_id, self.rng, hide_kv_received=self.rng.random() < 0.1)

    def fail(self) -> None:
        """Some call breaks, often one of a block that is read early: those are few."""
        read_early = [request for request in self.oracle.requests.values() if request.reader_id is not None]
        calls = [call_id for request in read_early for call_id in (request.call_id, request.reader_id) if call_id]
        if not calls or self.rng.random() < 0.5:
            calls = list(self.oracle.calls)
        if calls:
            self.oracle.fail(self.rng.choice(calls), self.rng.choice(FAILURES))

    def cancel(self) -> None:
        """Some client leaves."""
        if self.oracle.requests and self.rng.random() < 0.3:
            self.oracle.cancel(self.rng.choice(list(self.oracle.requests)))

    def advance(self) -> None:
        """Time passes."""
        self.oracle.advance(self.rng.choice([0.01, 0.3, 3.0, 6.0]))

    def echo(self) -> None:
        """Something arrives late or twice."""
        if self.oracle.echoes:
            self.oracle.echo(self.rng.randrange(len(self.oracle.echoes)))

    def start_worker(self) -> None:
        """A worker process starts, perhaps before its former life is known to be over."""
        self._start(self.rng.choice([Role.PREFILL, Role.DECODE]), self.rng.randrange(MOST_WORKERS))

    def repeat_worker(self) -> None:
        """A registration arrives again, perhaps of a life that is over."""
        newest = self.oracle.newest
        if newest:
            name = self.rng.choice(sorted(newest))
            role = Role.PREFILL if name.startswith("p") else Role.DECODE
            known = [spec for life, spec in self.oracle.workers.items() if life.worker_id == name]
            old = self._spec(role, int(name[1:]), self.rng.randint(1, newest[name]))
            self.oracle.register(known[0] if known and self.rng.random() < 0.5 else old)

    def lose(self) -> None:
        """Some worker dies."""
        if self.oracle.workers:
            self.oracle.lose(self.rng.choice(list(self.oracle.workers)))

    def drain(self) -> None:
        """Some worker drains."""
        if self.oracle.workers:
            self.oracle.drain(self.rng.choice(list(self.oracle.workers)))

    def want(self) -> None:
        """Some decode worker with an adaptive budget says how much it wants; 0 blocks: it does not know."""
        lives = [life for life, spec in self.oracle.workers.items() if spec.role is Role.DECODE]
        if lives:
            report = iteration_report(
                wanted_blocks=self.rng.choice([0, 0, 1, 2, 4]), wanted_prefill_tokens=self.rng.choice([0, 30, 60])
            )
            self.oracle.want(self.rng.choice(lives), report)

    def end_lease(self) -> None:
        """Some owner lets K/V go."""
        if self.oracle.kept:
            self.oracle.end_lease(*self.rng.choice(list(self.oracle.kept)))

    def _start(self, role: Role, index: int) -> None:
        spec = self._spec(role, index, 1)
        incarnation = self.oracle.newest.get(spec.life.worker_id, 0) + 1
        self.oracle.register(self._spec(role, index, incarnation))

    @staticmethod
    def _spec(role: Role, index: int, incarnation: int) -> WorkerSpec:
        pages = DECODE_PAGES if role is Role.DECODE else PREFILL_PAGES[index % 2]
        spec = worker_spec(f"{role.value[0]}{index}", role, incarnation=incarnation, pages=pages)
        return replace(spec, token_budget_tokens=24, max_prefill_tokens_per_batch=24, fast_link_domain=str(index % 2))


def random_options(rng: random.Random) -> dict[str, Any]:
    """One choice for every option of the scheduler."""
    return {
        "overload_threshold_tokens": rng.choice([1, 40, 200]),
        "overflow_enabled": rng.random() < 0.8,
        "prefill_policy": rng.choice(sorted(PREFILL_POLICIES)),
        "decode_policy": rng.choice(sorted(DECODE_POLICIES)),
        "colocated_policy": rng.choice(sorted(COLOCATED_POLICIES)),
        "topology_alpha": rng.choice([0.0, 0.7, 1.0]),
        "length_slack": rng.choice([0.0, 0.1, 2.0]),
        "sticky_workers": rng.random() < 0.5,
        "kv_overlap": rng.random() < 0.5,
        "min_kept_share": rng.choice([0.0, 0.0, 0.9]),
        "queue_order": rng.choice(list(QueueOrder)),
        "dispatch": rng.choice(list(Dispatch)),
        "dispatch_ahead": rng.choice([1, 2, 3]),
        "max_gen_len_tokens": rng.choice([0, 0, 12, 24]),
        "tenant_quantum_tokens": rng.choice([1, 16, 64, 4096]),
        "tenant_weights": rng.choice([{}, {"a": 3}]),
        "max_queue_wait_s": rng.choice([0.2, 2.0, 30.0]),
    }
