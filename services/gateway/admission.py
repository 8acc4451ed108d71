"""How much the gateway lets in at once, counted in canvas tokens; what does not fit is told when to come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.clock import Clock
from common.core.unowned import Holding, Unowned
from common.errors import Reason, WireError

_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 30.0
_RATE_HALF_LIFE_S = 10.0


class Place:
    """What one live request holds."""

    def __init__(self, admission: Admission, request_id: str) -> None:
        self._admission = admission
        self._request_id = request_id

    def resize(self, canvas_tokens: int) -> None:
        """The canvas is that long, as is known now. Raises `WireError` QUEUE_FULL when so much does not fit."""
        self._admission.resize(self._request_id, canvas_tokens)


@dataclass(slots=True, kw_only=True)
class _Live:
    """One admitted request: its canvas, as long as is known now, and whether nobody waits for it any more."""

    canvas_tokens: int
    is_over: Callable[[], bool]


class Admission:
    """Live requests and their canvas tokens against two limits. A request larger than the token limit runs alone.

    Nothing waits here: the scheduler owns the queue. A refusal names a back-off derived from how fast canvas tokens
    have lately been given back.
    """

    def __init__(self, *, max_requests: int, max_tokens: int, clock: Clock) -> None:
        """Limits are positive; `clock` gives monotonic seconds."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._clock = clock
        self._live: dict[str, _Live] = {}
        self._tokens = 0
        self._released_per_s = 0.0
        self._rated_at = clock.now()

    @property
    def inflight_requests(self) -> int:
        """Requests admitted and not yet over."""
        return len(self._live)

    @property
    def inflight_tokens(self) -> int:
        """Canvas tokens of the requests in flight."""
        return self._tokens

    def unowned(self) -> list[Unowned]:
        """Places of requests that nobody waits for."""
        over = [request_id for request_id, live in self._live.items() if live.is_over()]
        return [Unowned(holding=Holding.REQUESTS, name=f"the place of {request_id}") for request_id in over]

    @contextmanager
    def admit(
        self, request_id: str, canvas_tokens: int, *, is_over: Callable[[], bool] = lambda: False
    ) -> Iterator[Place]:
        """Hold a place while the request lives; `canvas_tokens` may be a lower bound, until `Place.resize`.

        `is_over` says whether nobody waits for the request any more: a place that outlives that is held for nobody.

        Raises `WireError` QUEUE_FULL (with `retry_after_s`) when it does not fit.
        """
        assert request_id not in self._live, f"{request_id!r} has a place already"
        shortage = self._shortage(canvas_tokens)
        if shortage > 0:
            raise self._queue_full(shortage)
        self._live[request_id] = _Live(canvas_tokens=canvas_tokens, is_over=is_over)
        self._tokens += canvas_tokens
        try:
            yield Place(self, request_id)
        finally:
            self._release(request_id)

    def resize(self, request_id: str, canvas_tokens: int) -> None:
        """See `Place.resize`."""
        live = self._live[request_id]
        grown = canvas_tokens - live.canvas_tokens
        shortage = self._tokens + grown - self._max_tokens
        if grown > 0 and shortage > 0 and len(self._live) > 1:
            raise self._queue_full(shortage)
        live.canvas_tokens = canvas_tokens
        self._tokens += grown

    def _shortage(self, canvas_tokens: int) -> int:
        """Canvas tokens that must be given back before this one fits; 0 when it fits."""
        if not self._live:
            return 0
        if len(self._live) >= self._max_requests:
            return max(1, self._tokens // len(self._live))
        return max(0, self._tokens + canvas_tokens - self._max_tokens)

    def _queue_full(self, shortage_tokens: int) -> WireError:
        estimate = shortage_tokens / self._released_per_s if self._released_per_s > 0 else 1.0
        return WireError(
            Reason.QUEUE_FULL,
            f"the gateway is full: {len(self._live)} of {self._max_requests} requests, "
            f"{self._tokens} of {self._max_tokens} canvas tokens in flight",
            metadata={"inflight_requests": str(len(self._live)), "inflight_tokens": str(self._tokens)},
            retry_after_s=min(_MAX_RETRY_S, max(_MIN_RETRY_S, estimate)),
        )

    def _release(self, request_id: str) -> None:
        tokens = self._live.pop(request_id).canvas_tokens
        self._tokens -= tokens
        now = self._clock.now()
        kept = 0.5 ** ((now - self._rated_at) / _RATE_HALF_LIFE_S)
        self._rated_at = now
        # Exponential decay: a steady release of r tokens/s settles at r.
        self._released_per_s = self._released_per_s * kept + tokens * math.log(2.0) / _RATE_HALF_LIFE_S
