"""The scheduler that answers in this process: none while another leads, a fresh one for each time of leading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from common.errors import Reason, WireError
from common.racing import race
from services.scheduler.leadership import Leadership
from services.scheduler.reign import Reign

log = logging.getLogger(__name__)

ReportLeading = Callable[[bool], Coroutine[Any, Any, None]]


class Office:
    """Begins a reign whenever this scheduler comes to lead and ends it when it leads no more; nothing is carried over.

    What a former leader's workers did is lost with it, requests come again from their gateways: a reign starts empty.
    """

    def __init__(self, *, begin: Callable[[int], Reign]) -> None:
        """`begin` makes the reign of a term."""
        self._begin = begin
        self._leadership: Leadership | None = None
        self._reign: Reign | None = None

    def reign(self) -> Reign:
        """The one that leads now. Raises NOT_LEADER, or SCHEDULER_UNAVAILABLE while starting and stopping."""
        if self._leadership is None:
            raise WireError(Reason.SCHEDULER_UNAVAILABLE, "the scheduler is starting or stopping; try again")
        if self._reign is None or not self._leadership.holds():
            raise _not_leader(self._leadership.leader)
        return self._reign

    def reign_over(self, least_term: int) -> Reign:
        """The one that leads now, to somebody who has met `least_term`. Raises NOT_LEADER, also when outranked."""
        reign = self.reign()
        if least_term > reign.term:
            assert self._leadership is not None, "it reigns"
            self._leadership.outranked(least_term)
            raise _not_leader("")
        return reign

    async def hold(self, leadership: Leadership, *, stop: asyncio.Event, report: ReportLeading) -> None:
        """Take part until `stop` is set; `report` is awaited whenever this scheduler begins or ceases to lead.

        Raises what a bug in a core raised.
        """
        self._leadership = leadership
        while not stop.is_set():
            term = await race(_nothing_after(stop), leadership.win())
            if term is not None:
                log.info("leads under term %d", term)
                await self._lead(term, leadership, stop, report)
        self._leadership = None
        await leadership.resign()

    async def _lead(self, term: int, leadership: Leadership, stop: asyncio.Event, report: ReportLeading) -> None:
        reign = self._begin(term)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reign.run())
            self._reign = reign
            await report(True)
            why = await race(_nothing_after(stop), leadership.lose(heard_s=lambda: reign.liveness.heard_s))
            self._reign = None
            await report(False)
            if why is None:
                reign.end(WireError(Reason.SCHEDULER_UNAVAILABLE, "the scheduler is stopping"))
            else:
                log.warning("leads no more: %s", why)
                reign.end(_not_leader(""))


def _not_leader(leader: str) -> WireError:
    """What those hear who ask a scheduler that does not lead; `leader` is a hint."""
    metadata = {"leader": leader} if leader else {}
    return WireError(Reason.NOT_LEADER, "this scheduler does not lead; ask the others", metadata=metadata)


async def _nothing_after(stop: asyncio.Event) -> None:
    await stop.wait()
