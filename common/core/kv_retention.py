"""K/V that a prefill worker keeps for a decode worker to fetch: leases, and pins while a send reads the pages."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.page_pool import PagePool
from common.core.worker_effects import ForgetKv, RetainKv


class _Phase(enum.Enum):
    COMPUTING = "computing"
    OFFERED = "offered"
    WITHDRAWN = "withdrawn"


@dataclass(slots=True, kw_only=True)
class _Lent:
    phase: _Phase
    expires_at_s: float = float("inf")
    sends: int = 0


class KvRetention:
    """Pages on offer under lease. They return to the pool when withdrawn *and* no send reads them.

    Withdrawn means: released, expired or fenced. A lease does not expire while a send runs. A send may begin during the
    prefill: its pages are then the block's own until that ends, in an offer or with nothing to offer.
    """

    def __init__(self, *, pool: PagePool, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._blocks: dict[BlockAttempt, _Lent] = {}

    @property
    def offered(self) -> tuple[BlockAttempt, ...]:
        """Attempts whose K/V may be fetched, oldest first."""
        return self._in_phase(_Phase.OFFERED)

    @property
    def withdrawn(self) -> tuple[BlockAttempt, ...]:
        """Attempts no longer on offer whose pages a send may still read."""
        return self._in_phase(_Phase.WITHDRAWN)

    def __contains__(self, attempt: BlockAttempt) -> bool:
        return attempt in self._blocks

    def retain(self, attempt: BlockAttempt, *, canvas_tokens: int, now: float) -> RetainKv:
        """Put the pages that `attempt` owns on offer for one lease."""
        block = self._blocks.setdefault(attempt, _Lent(phase=_Phase.COMPUTING))
        assert block.phase is _Phase.COMPUTING, f"{attempt} is retained already"
        block.phase, block.expires_at_s = _Phase.OFFERED, now + self._lease_s
        page_ids = self._pool.pages_of(attempt)
        return RetainKv(attempt=attempt, page_ids=page_ids, canvas_tokens=canvas_tokens, lease_s=self._lease_s)

    def withdraw(self, attempt: BlockAttempt) -> list[ForgetKv]:
        """End the offer; nothing happens when there is none (release is idempotent)."""
        block = self._blocks.get(attempt)
        if block is None or block.phase is not _Phase.OFFERED:
            return []
        block.phase = _Phase.WITHDRAWN
        self._free_if_unused(attempt, block)
        return [ForgetKv(attempt=attempt)]

    def keep_while_sent(self, attempt: BlockAttempt) -> bool:
        """The prefill of `attempt` left nothing to offer. True: a send still reads its pages, which return after it."""
        block = self._blocks.get(attempt)
        if block is None:
            return False
        assert block.phase is _Phase.COMPUTING and block.sends, f"{attempt} is retained, and dropped"
        block.phase = _Phase.WITHDRAWN
        return True

    def send_started(self, attempt: BlockAttempt, *, in_forward: bool) -> None:
        """A send reads the pages from now on: of what is on offer, or of a prefill whose forward runs."""
        block = self._blocks.get(attempt)
        if block is None and in_forward:
            block = self._blocks[attempt] = _Lent(phase=_Phase.COMPUTING)
        assert block is not None and block.phase is not _Phase.WITHDRAWN, f"a send of {attempt}, which is not on offer"
        block.sends += 1

    def send_ended(self, attempt: BlockAttempt) -> None:
        """That send reads the pages no longer."""
        block = self._blocks.get(attempt)
        assert block is not None and block.sends > 0, f"the end of a send of {attempt}, which never began"
        block.sends -= 1
        self._free_if_unused(attempt, block)

    def expire(self, now: float) -> list[ForgetKv]:
        """Withdraw what is past its lease and not being sent."""
        if not self._blocks:
            return []
        return [effect for attempt in self.overdue(now) for effect in self.withdraw(attempt)]

    def overdue(self, now: float) -> list[BlockAttempt]:
        """What is past its lease and not being sent."""
        return [attempt for attempt, block in self._leases() if block.expires_at_s <= now]

    def next_expiry(self) -> float | None:
        """When `expire` has something to do."""
        if not self._blocks:
            return None
        return min([block.expires_at_s for _, block in self._leases()], default=None)

    def _in_phase(self, phase: _Phase) -> tuple[BlockAttempt, ...]:
        return tuple([attempt for attempt, block in self._blocks.items() if block.phase is phase])

    def _leases(self) -> list[tuple[BlockAttempt, _Lent]]:
        return [(a, block) for a, block in self._blocks.items() if block.phase is _Phase.OFFERED and not block.sends]

    def _free_if_unused(self, attempt: BlockAttempt, block: _Lent) -> None:
        if block.sends or block.phase is _Phase.OFFERED:
            return
        del self._blocks[attempt]
        if block.phase is _Phase.WITHDRAWN:
            self._pool.release(attempt)
