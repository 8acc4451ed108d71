"""One request at the scheduler, over as many Schedule calls as it takes.

A broken call (scheduler gone, restarted, unreachable) is no failure of the request: the committed tokens live here, so
the gateway waits for the scheduler's health and asks again with everything already seen. What the client has been
shown neither repeats nor changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from common.backoff import Backoff
from common.clock import Clock
from common.core.work import RequestSpec
from common.errors import Reason, WireError
from sangam.v1 import scheduler_pb2
from services.gateway.measures import failures_counted
from services.gateway.progress import RequestProgress

Events = AsyncGenerator[scheduler_pb2.ScheduleResponse, None]


class ScheduleBroken(WireError):
    """The Schedule call ended without a verdict on the request: it may be asked again."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.SCHEDULER_UNAVAILABLE, f"the scheduler is not reachable: {detail}")


class Scheduler(Protocol):
    """What the gateway needs of a scheduler; the real one is `services.gateway.scheduler_client`."""

    def schedule(self, spec: RequestSpec, *, timeout_s: float | None) -> Events:
        """The messages of one Schedule call, up to `finished`; closing the generator cancels the call.

        Raises `ScheduleBroken` when the call ended without a verdict, `WireError` with the scheduler's verdict else.
        """
        ...

    async def wait_until_serving(self, *, timeout_s: float) -> bool:
        """Return True as soon as the scheduler reports SERVING, False after `timeout_s`."""
        ...


class CancellingScheduler(Scheduler, Protocol):
    """A scheduler that can also be told to end requests which other gateways run."""

    async def cancel(self, request_id: str) -> bool:
        """End the request for every gateway that follows it; False when none of that id runs there.

        Raises `ScheduleBroken` when the scheduler cannot be asked.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """How long a request outlives its scheduler.

    `max_outage_s` bounds one wait for health, `max_fruitless_calls` the broken calls in a row that brought no token,
    `backoff_s` the pause before the first repeat (doubled for each further one, at most `max_backoff_s`).
    """

    max_outage_s: float = 60.0
    max_fruitless_calls: int = 8
    backoff_s: float = 0.05
    max_backoff_s: float = 2.0


class Deadline:
    """The moment a request must be over, on a monotonic clock; `at_s` None means never."""

    def __init__(self, *, clock: Clock, remaining_s: float | None) -> None:
        self._clock = clock
        self._at_s = None if remaining_s is None else clock.now() + remaining_s

    def remaining_s(self) -> float | None:
        """Seconds left, None without a deadline. Raises `WireError` DEADLINE_EXCEEDED when none are left."""
        if self._at_s is None:
            return None
        left = self._at_s - self._clock.now()
        if left <= 0:
            raise WireError(Reason.DEADLINE_EXCEEDED, "the request's deadline has passed")
        return left

    def at_most(self, limit_s: float) -> float:
        """`limit_s`, or what is left if that is less."""
        left = self.remaining_s()
        return limit_s if left is None else min(limit_s, left)


class ResumingSchedule:
    """Runs one request to its end through `scheduler`, resuming after broken calls."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        progress: RequestProgress,
        deadline: Deadline,
        policy: ResumePolicy,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._progress = progress
        self._deadline = deadline
        self._policy = policy
        self._clock = clock
        self._fruitless = 0
        self._backoff = Backoff(first_s=policy.backoff_s, longest_s=policy.max_backoff_s, jitter=False)

    async def events(self) -> Events:
        """Every message of every call, in order; ends when the request is finished, or needs no scheduler any more.

        Raises `WireError` with the verdict when the request failed.
        """
        with failures_counted():
            async with aclosing(self._events()) as events:
                async for event in events:
                    yield event

    async def _events(self) -> Events:
        while not self._progress.complete:
            spec = self._progress.spec_to_resume()
            try:
                call = self._scheduler.schedule(spec, timeout_s=self._deadline.remaining_s())
                async with aclosing(call) as events:
                    async for event in events:
                        yield event
                return
            except ScheduleBroken as error:
                await self._recover(error)
            except WireError as error:
                # A ghost: a request with other content of that id, of a gateway that died, whose call the scheduler has
                # not yet seen break. One that another gateway runs looks the same, for a few seconds.
                if error.reason is not Reason.DUPLICATE_REQUEST_ID:
                    raise
                await self._recover(error)

    async def _recover(self, error: WireError) -> None:
        """Wait until asking again makes sense, if anything is left to ask; raises `error` when it never will."""
        brought_tokens = self._progress.call_broken()
        if self._progress.complete:
            return
        self._fruitless = 0 if brought_tokens else self._fruitless + 1
        if self._fruitless > self._policy.max_fruitless_calls:
            raise error
        if brought_tokens:
            self._backoff.reset()
        await self._clock.sleep(self._deadline.at_most(self._backoff.take()))
        wait_s = self._deadline.at_most(self._policy.max_outage_s)
        if not await self._scheduler.wait_until_serving(timeout_s=wait_s):
            self._deadline.remaining_s()
            raise error
