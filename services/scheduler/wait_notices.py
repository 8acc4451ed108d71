"""Who waits for a worker that is not there, and when to tell its client so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from common.core.ids import RequestId
from common.core.work import WaitReason
from common.lasting import Lasting

NOTICE_AFTER_S = 2.0
"""A worker that restarts is back by then, most often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWaits:
    """A fact for a request's client; not the end of anything."""

    reason: WaitReason


class WaitNotices:
    """Tells each wait once, when it has lasted `NOTICE_AFTER_S` seconds."""

    def __init__(self) -> None:
        self._waits: Lasting[RequestId] = Lasting(after_s=NOTICE_AFTER_S)

    def due(self, waiting: Collection[RequestId], now_s: float) -> list[RequestId]:
        """Those of `waiting`, all that wait at `now_s`, who are to be told now."""
        return self._waits.look(waiting, now_s)
