"""Which lives of which workers are over: a life is stale once it was fenced or a newer one was seen."""

from __future__ import annotations

from common.core.ids import WorkerId, WorkerLife

MAX_REMEMBERED_WORKERS = 4096


class Incarnations:
    """Newest life and highest fenced life per worker id; remembers the most recent worker ids only."""

    def __init__(self) -> None:
        self._newest: dict[WorkerId, int] = {}
        self._fenced: dict[WorkerId, int] = {}

    def is_stale(self, life: WorkerLife) -> bool:
        """Whether this life is over."""
        newest = self._newest.get(life.worker_id, life.incarnation)
        fenced = self._fenced.get(life.worker_id, life.incarnation - 1)
        return life.incarnation < newest or life.incarnation <= fenced

    def least(self, worker_id: WorkerId) -> int:
        """Smallest incarnation above every life of that worker that was seen or fenced."""
        return max(self._newest.get(worker_id, 0), self._fenced.get(worker_id, 0)) + 1

    def observe(self, life: WorkerLife) -> bool:
        """A sign of that life: earlier ones are over. True when it is the first sign of it."""
        first = self._newest.get(life.worker_id) != life.incarnation
        _raise_to(self._newest, life)
        return first

    def fence(self, life: WorkerLife) -> None:
        """That life and all earlier ones are over."""
        _raise_to(self._fenced, life)


def _raise_to(table: dict[WorkerId, int], life: WorkerLife) -> None:
    # Re-inserting keeps the dict in order of last use, so that the oldest id is the one to forget.
    value = max(table.pop(life.worker_id, life.incarnation), life.incarnation)
    table[life.worker_id] = value
    if len(table) > MAX_REMEMBERED_WORKERS:
        del table[next(iter(table))]
