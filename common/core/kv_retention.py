"""K/V that a prefill worker keeps for a decode worker to fetch: leases, and pins while a send reads the pages."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.page_pool import PagePool
from common.core.worker_effects import ForgetKv, RetainKv


@dataclass(slots=True, kw_only=True)
class _Retained:
    expires_at_s: float
    sends: int = 0
    withdrawn: bool = False


class KvRetention:
    """Pages on offer under lease. They return to the pool when withdrawn *and* no send reads them.

    Withdrawn means: released, expired or fenced. A lease does not expire while a send runs.
    """

    def __init__(self, *, pool: PagePool, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._blocks: dict[BlockAttempt, _Retained] = {}

    @property
    def offered(self) -> tuple[BlockAttempt, ...]:
        """Attempts whose K/V may be fetched, oldest first."""
        return tuple(attempt for attempt, block in self._blocks.items() if not block.withdrawn)

    @property
    def withdrawn(self) -> tuple[BlockAttempt, ...]:
        """Attempts no longer on offer whose pages a send may still read."""
        return tuple(attempt for attempt, block in self._blocks.items() if block.withdrawn)

    def __contains__(self, attempt: BlockAttempt) -> bool:
        return attempt in self._blocks

    def retain(self, attempt: BlockAttempt, *, canvas_tokens: int, now: float) -> RetainKv:
        """Put the pages that `attempt` owns on offer for one lease."""
        assert attempt not in self._blocks, f"{attempt} is retained already"
        self._blocks[attempt] = _Retained(expires_at_s=now + self._lease_s)
        page_ids = self._pool.pages_of(attempt)
        return RetainKv(attempt=attempt, page_ids=page_ids, canvas_tokens=canvas_tokens, lease_s=self._lease_s)

    def withdraw(self, attempt: BlockAttempt) -> list[ForgetKv]:
        """End the offer; nothing happens when there is none (release is idempotent)."""
        block = self._blocks.get(attempt)
        if block is None or block.withdrawn:
            return []
        block.withdrawn = True
        self._free_if_unused(attempt, block)
        return [ForgetKv(attempt=attempt)]

    def send_started(self, attempt: BlockAttempt) -> None:
        """A send reads the pages from now on; only what is on offer may be sent."""
        block = self._blocks.get(attempt)
        assert block is not None and not block.withdrawn, f"a send of {attempt}, which is not on offer"
        block.sends += 1

    def send_ended(self, attempt: BlockAttempt) -> None:
        """That send reads the pages no longer."""
        block = self._blocks.get(attempt)
        assert block is not None and block.sends > 0, f"the end of a send of {attempt}, which never began"
        block.sends -= 1
        self._free_if_unused(attempt, block)

    def expire(self, now: float) -> list[ForgetKv]:
        """Withdraw what is past its lease and not being sent."""
        return [effect for attempt in self.overdue(now) for effect in self.withdraw(attempt)]

    def overdue(self, now: float) -> list[BlockAttempt]:
        """What is past its lease and not being sent."""
        return [attempt for attempt, block in self._leases() if block.expires_at_s <= now]

    def next_expiry(self) -> float | None:
        """When `expire` has something to do."""
        return min((block.expires_at_s for _, block in self._leases()), default=None)

    def _leases(self) -> list[tuple[BlockAttempt, _Retained]]:
        return [(a, block) for a, block in self._blocks.items() if not block.withdrawn and not block.sends]

    def _free_if_unused(self, attempt: BlockAttempt, block: _Retained) -> None:
        if block.withdrawn and not block.sends:
            del self._blocks[attempt]
            self._pool.release(attempt)
