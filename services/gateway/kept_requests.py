"""Finished requests, for clients that come back for what they missed: for a while, and within bounds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from common.clock import Clock
from services.gateway.request_body import RequestBody
from services.gateway.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRequest:
    """A finished request: what was asked, what was shown, and when it is forgotten (on the clock, in seconds)."""

    body: RequestBody
    transcript: Transcript
    forget_at_s: float


class KeptRequests:
    """At most so many, of at most so many bytes, each for at most so long; the oldest go first."""

    def __init__(self, *, ttl_s: float, max_requests: int, max_bytes: int, clock: Clock) -> None:
        """`ttl_s` 0 keeps nothing."""
        self._ttl_s = ttl_s
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._clock = clock
        # All stay equally long: insertion order is the order of going.
        self._kept: OrderedDict[str, KeptRequest] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Memory that they take, about."""
        return self._bytes

    def get(self, request_id: str) -> KeptRequest | None:
        """The finished request of that id, unless it is forgotten."""
        self.forget_old()
        return self._kept.get(request_id)

    def keep(self, request_id: str, body: RequestBody, transcript: Transcript) -> None:
        """Take in a request that finished well just now; what no longer fits goes."""
        assert request_id not in self._kept, f"{request_id!r} was kept already"
        compact = transcript.compacted()
        kept = KeptRequest(body=body, transcript=compact, forget_at_s=self._clock.now() + self._ttl_s)
        self._kept[request_id] = kept
        self._bytes += compact.size_bytes
        self.forget_old()

    def forget_old(self) -> None:
        """Drop what has been here for too long, and the oldest of what is too much."""
        now_s = self._clock.now()
        while self._kept and (self._too_much or next(iter(self._kept.values())).forget_at_s <= now_s):
            _, gone = self._kept.popitem(last=False)
            self._bytes -= gone.transcript.size_bytes

    @property
    def _too_much(self) -> bool:
        return len(self._kept) > self._max_requests or self._bytes > self._max_bytes
