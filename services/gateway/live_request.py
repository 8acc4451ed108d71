"""One running request: it belongs to the gateway, not to the call that began it, and ends when nobody is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from common.clock import Clock
from common.errors import Reason, WireError
from common.rpc.status import internal_error
from common.telemetry import current_trace_id
from services.gateway.request_body import RequestBody
from services.gateway.transcript import Responses, Transcript, View

MAX_WATCHERS = 64
"""Calls that may watch one request at once."""

RETRY_AFTER_S = 1.0

Work = Callable[[Transcript], Coroutine[Any, Any, None]]
"""Runs a request to its end and writes what it shows; raises `WireError` when it fails."""

_log = logging.getLogger(__name__)


class LiveRequest:
    """Owns the task that runs a request, and counts who watches it.

    When the last watcher leaves, the request is cancelled: at once, or after the longest grace that was asked for by
    those who have left since the last one came. Tasks belong to `tasks`.
    """

    def __init__(
        self,
        *,
        request_id: str,
        body: RequestBody,
        transcript: Transcript,
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.request_id = request_id
        self.body = body
        self.transcript = transcript
        self._clock = clock
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._leave_task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._waits_for_nobody = False
        self._watchers = 0
        self._keep_until_s = clock.now()
        self._ended = asyncio.Event()

    @property
    def is_unwanted(self) -> bool:
        """Whether nobody watches it, and nobody is waited for."""
        waits = self._keep_until_s > self._clock.now() and not self._waits_for_nobody
        return not self._watchers and not waits

    @property
    def ending(self) -> bool:
        """Whether it was cancelled, or has ended."""
        return self._cancelled or self._ended.is_set()

    def begin(self, work: Work, *, on_end: Callable[[LiveRequest], None]) -> None:
        """Run `work` in a task of the caller's context (its trace); `on_end` is called when all is over."""
        assert self._task is None, "a request begins once"
        self._task = self._tasks.create_task(self._run(work))
        self._task.add_done_callback(lambda done: self._end(on_end))

    def cancel(self) -> None:
        """End it now; idempotent. `ended` tells when everything that it held is given back."""
        if self._task is not None and not self.ending:
            self._cancelled = True
            self._task.cancel()

    def wait_for_nobody(self) -> None:
        """It ends with its last call from now on, whatever grace was asked for."""
        self._waits_for_nobody = True
        if self._task is not None:
            self._leave()

    async def ended(self) -> None:
        """Return once it is over."""
        await self._ended.wait()

    async def watch(self, view: View) -> Responses:
        """Everything from the view's position on. Raises `WireError`: the request's own, or QUEUE_FULL."""
        if self._watchers >= MAX_WATCHERS:
            problem = f"{MAX_WATCHERS} calls watch request {self.request_id!r} already"
            raise WireError(Reason.QUEUE_FULL, problem, retry_after_s=RETRY_AFTER_S)
        self._watchers += 1
        # Who comes is taken for whoever was waited for.
        self._keep_until_s = self._clock.now()
        try:
            async with aclosing(self.transcript.read(view)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._watchers -= 1
            self._keep_until_s = max(self._keep_until_s, self._clock.now() + view.detach_grace_s)
            self._leave()

    def _leave(self) -> None:
        """Nobody may be left to wait for the result."""
        if self._watchers or self.ending:
            return
        if self.is_unwanted:
            self.cancel()
        elif self._leave_task is None:
            self._leave_task = self._tasks.create_task(self._linger())

    async def _linger(self) -> None:
        """Wait for somebody to come back, as long as the graces say."""
        while not self._watchers and (left_s := self._keep_until_s - self._clock.now()) > 0:
            await self._clock.sleep(left_s)
        self._leave_task = None
        self._leave()

    async def _run(self, work: Work) -> None:
        try:
            await work(self.transcript)
        except WireError as error:
            self.transcript.fail(error)
        except Exception as error:
            trace_id = current_trace_id()
            _log.error("request %s failed (trace %s)", self.request_id, trace_id, exc_info=error)
            self.transcript.fail(internal_error(trace_id))

    def _end(self, on_end: Callable[[LiveRequest], None]) -> None:
        if self._leave_task is not None:
            self._leave_task.cancel()
        if not self.transcript.ended:
            self.transcript.fail(WireError(Reason.CANCELLED, "the request was cancelled"))
        self._ended.set()
        on_end(self)
