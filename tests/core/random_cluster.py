"""Drives a `SchedulerOracle` with random happenings, then lets everything come to rest."""

from __future__ import annotations

import random

from common.core.cluster import WorkerSpec
from common.core.ids import Role, ServingMode
from common.core.params import CacheMode
from common.core.scheduler_config import SchedulerConfig
from common.errors import Reason
from tests.core.paper_cluster import require
from tests.core.samples import request_spec, worker_spec
from tests.core.scheduler_oracle import SchedulerOracle

FAILURES = [
    Reason.NO_KV_PAGES,
    Reason.NO_KV_PAGES,
    Reason.PEER_LOST,
    Reason.KV_LEASE_EXPIRED,
    Reason.STALE_ATTEMPT,
    Reason.KV_CHECKSUM,
    Reason.INTERNAL,
]
PREFILL_PAGES = (8, 20)
DECODE_PAGES = 14
MOST_WORKERS = 3


class RandomCluster:
    """One happening per method; each takes its choices from `rng`, so a seed replays."""

    def __init__(self, mode: ServingMode, rng: random.Random, *, threshold_tokens: int = 40) -> None:
        config = SchedulerConfig(mode=mode, overload_threshold_tokens=threshold_tokens, max_attempts=4)
        self.rng = rng
        self.oracle = SchedulerOracle(config)
        self.submitted = 0

    def run(self, happenings: int) -> None:
        """Start some workers, then let things happen."""
        for _ in range(4):
            self.start_worker()
        choices = [self.submit] * 4 + [self.answer] * 10 + [self.fail, self.cancel, self.advance, self.echo, self.echo]
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
        self.oracle.submit(spec)

    def answer(self) -> None:
        """Some call gets on."""
        if self.oracle.calls:
            call_id = self.rng.choice(list(self.oracle.calls))
            self.oracle.answer(call_id, self.rng, hide_kv_received=self.rng.random() < 0.1)

    def fail(self) -> None:
        """Some call breaks."""
        if self.oracle.calls:
            self.oracle.fail(self.rng.choice(list(self.oracle.calls)), self.rng.choice(FAILURES))

    def cancel(self) -> None:
        """Some client leaves."""
        if self.oracle.requests and self.rng.random() < 0.3:
            self.oracle.cancel(self.rng.choice(list(self.oracle.requests)))

    def advance(self) -> None:
        """Time passes."""
        self.oracle.advance(self.rng.choice([0.01, 0.3, 3.0]))

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
        return worker_spec(f"{role.value[0]}{index}", role, incarnation=incarnation, pages=pages)
