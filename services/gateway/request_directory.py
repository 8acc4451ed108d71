"""Every request that the gateway knows, by id: those that run, and those that finished a short while ago."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from types import TracebackType

from common.clock import Clock
from common.committed import TextSink
from common.errors import Reason, WireError
from services.gateway.kept_requests import KeptRequests
from services.gateway.live_request import LiveRequest, Work
from services.gateway.request_body import RequestBody
from services.gateway.transcript import Responses, Transcript, View

_SWEEP_S = 5.0
"""Pause between two looks for what to forget, so that an idle gateway forgets too."""


class RequestDirectory:
    """Begins requests, lets calls attach to them, keeps what finished. An async context: leaving it cancels them all.

    A request that failed is forgotten at once: the id may be used to run it again.
    """

    def __init__(self, *, kept: KeptRequests, new_text: Callable[[], TextSink], clock: Clock) -> None:
        """`new_text` makes a fresh decoder of generated tokens."""
        self._kept = kept
        self._new_text = new_text
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self.waits_for_nobody = False
        """Whether requests end with their last call, whatever grace was asked for."""
        self._tasks = asyncio.TaskGroup()
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RequestDirectory:
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.create_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sweeper is not None
        self._sweeper.cancel()
        for live in list(self._live.values()):
            live.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def live_requests(self) -> int:
        """Requests that run."""
        return len(self._live)

    @property
    def kept_requests(self) -> int:
        """Finished requests that can still be had."""
        return len(self._kept)

    def is_unwanted(self, request_id: str) -> bool:
        """Whether no running request has that id, or nobody waits for the one that has."""
        live = self._live.get(request_id)
        return live is None or live.is_unwanted

    def wait_for_nobody(self) -> None:
        """From now on a request ends with its last call, whatever grace was asked for: nobody can come back here."""
        self.waits_for_nobody = True
        for live in list(self._live.values()):
            live.wait_for_nobody()

    async def watch(self, request_id: str, body: RequestBody, view: View, *, begin: Callable[[], Work]) -> Responses:
        """What the request of that id shows; `begin` tells how to run it, when there is none yet, or raises.

        Raises `WireError` DUPLICATE_REQUEST_ID when the id belongs to a request with another body, else the request's
        own error.
        """
        responses = await self._known(request_id, body, view) or self._begin(request_id, body, begin()).watch(view)
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def cancel(self, request_id: str) -> bool:
        """End a running request and wait until it is over; False when none of that id runs."""
        live = self._live.get(request_id)
        if live is None:
            return False
        live.cancel()
        await live.ended()
        return True

    async def _known(self, request_id: str, body: RequestBody, view: View) -> Responses | None:
        while (live := self._live.get(request_id)) is not None:
            if not live.ending:
                _check_same(request_id, live.body, body)
                return live.watch(view)
            await live.ended()
        kept = self._kept.get(request_id)
        if kept is None:
            return None
        _check_same(request_id, kept.body, body)
        return kept.transcript.read(view)

    def _begin(self, request_id: str, body: RequestBody, work: Work) -> LiveRequest:
        live = LiveRequest(
            request_id=request_id,
            body=body,
            transcript=Transcript(self._new_text),
            clock=self._clock,
            tasks=self._tasks,
        )
        self._live[request_id] = live
        if self.waits_for_nobody:
            live.wait_for_nobody()
        live.begin(work, on_end=self._on_end)
        return live

    def _on_end(self, live: LiveRequest) -> None:
        del self._live[live.request_id]
        if live.transcript.finished_well:
            self._kept.keep(live.request_id, live.body, live.transcript)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._kept.forget_old()


def _check_same(request_id: str, known: RequestBody, given: RequestBody) -> None:
    field = known.difference(given)
    if field is not None:
        raise WireError(
            Reason.DUPLICATE_REQUEST_ID,
            f"request_id: {request_id!r} belongs to a request with another {field}",
            metadata={"field": field},
        )
