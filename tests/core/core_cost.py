"""What one event costs the scheduler as the cluster grows: `python -m tests.core.core_cost` prints the table."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

from common.core import effects as fx
from common.core import events as ev
from common.core.ids import Role, ServingMode
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.core.work import FinishReason
from tests.core.samples import delta, request_spec, worker_spec
from tests.core.stage import done


class Mill:
    """A colocated cluster that is always full: each block's end lets the head of a long queue in."""

    def __init__(self, workers: int, queued: int, config: SchedulerConfig | None = None) -> None:
        self.core = SchedulerCore(config or SchedulerConfig(mode=ServingMode.COLOCATED, max_queued_requests=10**9))
        self.calls: deque[fx.CallDecode] = deque()
        self.events = 0
        for index in range(workers):
            self.feed(ev.WorkerRegistered(worker=worker_spec(f"w{index:04d}", Role.DECODE, pages=8)))
        self.submitted = 0
        for _ in range(2 * workers + queued):
            self.submit()

    def feed(self, event: ev.SchedulerEvent) -> None:
        self.events += 1
        self.calls += (e for e in self.core.handle(event, 1e-6 * self.events) if isinstance(e, fx.CallDecode))

    def submit(self) -> None:
        spec = request_spec(f"r{self.submitted:07d}", prompt=8, max_tokens=8, block=4)
        self.submitted += 1
        self.feed(ev.RequestSubmitted(spec=replace(spec, tenant=str(self.submitted % 3))))

    def turn(self) -> None:
        """The oldest call runs its block in two steps; a finished request is followed by a new one."""
        call = self.calls.popleft()
        start, last = call.work.block_start_position, call.work.attempt.block == 1
        name = call.work.attempt.request_id
        self.feed(ev.DecodeStepped(call_id=call.call_id, step=delta(name, 0, [start])))
        self.feed(ev.DecodeStepped(call_id=call.call_id, step=delta(name, 1, [start + 1, start + 2, start + 3])))
        completion = done(1, FinishReason.LENGTH if last else None)
        self.feed(ev.DecodeCompleted(call_id=call.call_id, completion=completion))
        if last:
            self.submit()


def main() -> None:
    """Print microseconds per event for growing clusters and queues."""
    print(f"{'workers':>8} {'queued':>8} {'us/event':>9} {'events/s':>9}")
    for workers, queued in [(8, 100), (64, 100), (512, 100), (4096, 100), (8, 1000), (8, 10_000), (8, 100_000)]:
        mill = Mill(workers, queued)
        for _ in range(500):
            mill.turn()
        before, began = mill.events, time.process_time()
        for _ in range(4000):
            mill.turn()
        spent_s = time.process_time() - began
        events = mill.events - before
        print(f"{workers:8} {queued:8} {1e6 * spent_s / events:9.1f} {events / spent_s:9.0f}", flush=True)


if __name__ == "__main__":
    main()
