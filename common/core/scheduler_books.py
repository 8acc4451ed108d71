"""Whether a scheduler's records, ledger and lines agree. For checks, never for decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from common.core.block_flow import BlockFlow
from common.core.ids import BlockAttempt
from common.core.unowned import Holding, Unowned
from common.core.worker_account import WorkerAccount


class SchedulerBooks:
    """The live state of one `SchedulerCore`, to be looked at only."""

    def __init__(self, flow: BlockFlow) -> None:
        self._flow = flow

    def check(self) -> None:
        """Assert that records, ledger and lines agree; with no request alive, that nothing is held."""
        flow = self._flow
        flow.book.check()
        for account in flow.fleet.accounts:
            account.check()
            assert all(flow.calls[call_id].target == account.life for call_id in account.calls), account.life
            assert len(flow.book) or not account.pages.held, f"{account.life} holds pages for nobody"
        for call in flow.calls.values():
            found = flow.live(call.call_id)
            assert found is not None and call.call_id in found[2].pages.held, call
        assert len(flow.book) or not flow.calls, "calls for nobody"

    def unowned(self, clients: Collection[str]) -> list[Unowned]:
        """Reservations without a call or block, requests without one of `clients`, and the other way round."""
        flow = self._flow
        found = [found for account in flow.fleet.accounts for found in self._unowned_at(account)]
        for call in flow.calls.values():
            if call.request_id not in flow.book:
                found.append(Unowned(holding=Holding.REQUESTS, name=f"call {call.call_id} of {call.request_id}"))
        alive: frozenset[str] = flow.book.request_ids
        for request_id in sorted(alive ^ set(clients)):
            problem = "has no client" if request_id in alive else "is over, but its client waits"
            found.append(Unowned(holding=Holding.REQUESTS, name=f"request {request_id} {problem}"))
        return found

    def _unowned_at(self, account: WorkerAccount) -> Iterator[Unowned]:
        for holder, pages in account.pages.held.items():
            where = f"{holder} at {account.life.worker_id}"
            if not isinstance(holder, BlockAttempt):
                owned = holder in self._flow.calls
            else:
                request = self._flow.book.get(holder.request_id)
                owned = request is not None and request.block_attempt == holder
                if not owned:
                    yield Unowned(holding=Holding.LEASES, name=f"K/V of {where}")
            if not owned:
                yield Unowned(holding=Holding.PAGES, name=f"pages of {where}", count=pages)
