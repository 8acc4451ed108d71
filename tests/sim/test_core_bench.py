"""The benchmark's stage is what it says: full workers, and a queue that keeps its length."""

from __future__ import annotations

from common.bench.core import LoadedScheduler


def test_the_stage_keeps_its_queue():
    stage = LoadedScheduler(workers=3, queued=7)
    assert stage.queued_blocks == 7
    for _ in range(20):
        stage.turn()
    assert stage.queued_blocks == 7
