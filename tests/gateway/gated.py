"""Scheduler acts that stop until the test lets them go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sangam.v1 import scheduler_pb2
from tests.gateway.scripted_scheduler import Act, Context, Event, Response


class Gate:
    """Plays groups of events, the next one whenever `open` is called."""

    def __init__(self, *groups: tuple[Event, ...]) -> None:
        self._groups = groups
        self._may_pass = asyncio.Semaphore(0)

    def open(self) -> None:
        """Let one more group pass."""
        self._may_pass.release()

    @property
    def act(self) -> Act:
        """For `ScriptedScheduler.script`."""

        async def play(request: scheduler_pb2.ScheduleRequest, context: Context) -> AsyncIterator[Response]:
            for number, group in enumerate(self._groups):
                if number:
                    await self._may_pass.acquire()
                for event in group:
                    yield Response(events=[event])

        return play
