"""Who waits for a worker that is not there, and when to tell its client so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from common.core.ids import RequestId
from common.core.work import WaitReason

NOTICE_AFTER_S = 2.0
"""A worker that restarts is back by then, most often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWaits:
    """A fact for a request's client; not the end of anything."""

    reason: WaitReason


class WaitNotices:
    """Tells each wait once, when it has lasted `NOTICE_AFTER_S` seconds."""

    def __init__(self) -> None:
        self._since_s: dict[RequestId, float] = {}
        self._told: set[RequestId] = set()

    def due(self, waiting: Collection[RequestId], now_s: float) -> list[RequestId]:
        """Those of `waiting`, all that wait at `now_s`, who are to be told now."""
        self._since_s = {request_id: self._since_s.get(request_id, now_s) for request_id in waiting}
        self._told &= self._since_s.keys()
        due = [
            request_id
            for request_id, since_s in self._since_s.items()
            if now_s - since_s >= NOTICE_AFTER_S and request_id not in self._told
        ]
        self._told.update(due)
        return due
