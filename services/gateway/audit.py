"""The online audit: what caching costs, measured on live requests by running some of them again without any cache.

A chosen request that finished well is run again, token by token with the same seed, in cache mode `none` and as an idle
request: it is placed only while nobody waits. How far the two answers agree is exported; clients see nothing of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NoReturn

from common.committed import CommittedTokens
from common.core.ids import RequestId
from common.core.params import CacheMode
from common.core.work import RequestSpec
from common.errors import WireError
from common.metrics import catalogue as metrics
from common.rpc.convert import step_delta_from_proto
from services.gateway.resume import Scheduler

MAX_BACKLOG = 64
"""Requests that wait to be audited; with more, further ones are dropped (and counted)."""

TIMEOUT_S = 600.0
"""Longest time for one audit, most of which may be waiting for its turn."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Two answers compared position by position; what only one of them has counts as different."""

    same_tokens: int
    different_tokens: int

    @classmethod
    def of(cls, first: tuple[int, ...], second: tuple[int, ...]) -> Agreement:
        """Compare these token ids."""
        same = sum(one == other for one, other in zip_longest(first, second))
        return cls(same_tokens=same, different_tokens=max(len(first), len(second)) - same)

    @property
    def equal(self) -> bool:
        """Whether the answers are the same."""
        return not self.different_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    spec: RequestSpec
    token_ids: tuple[int, ...]


def is_chosen(request_id: str, rate: float) -> bool:
    """Whether that request is among the share `rate` (0 to 1) that is audited; always the same answer for an id."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < rate * 2.0**64


class Auditor:
    """Audits one request at a time. `eos_token_id` ends a rerun unless its request ignores it.

    Requests in cache mode `none` are never chosen: there is nothing to compare them with.
    """

    def __init__(self, *, scheduler: Scheduler, rate: float, eos_token_id: int) -> None:
        self._scheduler = scheduler
        self._rate = rate
        self._eos_token_id = eos_token_id
        self._backlog: asyncio.Queue[_Answered] = asyncio.Queue(maxsize=MAX_BACKLOG)

    def offer(self, spec: RequestSpec, token_ids: tuple[int, ...]) -> None:
        """A live request has finished well with these tokens: it joins the backlog if it is chosen. Returns at once."""
        if spec.cache_mode is CacheMode.NONE or not is_chosen(spec.request_id, self._rate):
            return
        try:
            self._backlog.put_nowait(_Answered(spec=spec, token_ids=token_ids))
        except asyncio.QueueFull:
            metrics.AUDITS.add(cache_mode=spec.cache_mode.value, outcome="dropped")
        metrics.AUDIT_BACKLOG.show(self._backlog.qsize())

    async def run(self) -> NoReturn:
        """Work the backlog off; ends by cancellation, and the audit in hand with it."""
        while True:
            answered = await self._backlog.get()
            metrics.AUDIT_BACKLOG.show(self._backlog.qsize())
            outcome = await self._audit(answered)
            metrics.AUDITS.add(cache_mode=answered.spec.cache_mode.value, outcome=outcome)

    async def _audit(self, answered: _Answered) -> str:
        """How it ended: "equal", "different" or "failed"; tokens are counted."""
        spec = answered.spec
        try:
            agreement = Agreement.of(answered.token_ids, await self._run_again(spec))
        except WireError as error:
            log.warning("the audit of %s failed: %s", spec.request_id, error)
            return "failed"
        mode = spec.cache_mode.value
        metrics.AUDIT_TOKENS.add(agreement.same_tokens, cache_mode=mode, agreement="same")
        metrics.AUDIT_TOKENS.add(agreement.different_tokens, cache_mode=mode, agreement="different")
        return "equal" if agreement.equal else "different"

    async def _run_again(self, spec: RequestSpec) -> tuple[int, ...]:
        # No client's id can begin so: a live request never meets its audit.
        again = replace(
            spec, request_id=RequestId(f"~audit-{secrets.token_hex(8)}"), cache_mode=CacheMode.NONE, idle=True
        )
        tokens = CommittedTokens.of(spec, eos_token_id=self._eos_token_id)
        async with aclosing(self._scheduler.schedule(again, timeout_s=TIMEOUT_S)) as messages:
            async for message in messages:
                for event in message.events:
                    if event.HasField("step"):
                        delta = step_delta_from_proto(event.step.delta)
                        tokens.reveal(delta.positions, delta.token_ids)
        return tokens.token_ids
