"""What the cores say is held for nobody, when a holder is taken away behind their backs."""

from __future__ import annotations

from common.core.effects import CallPrefill
from common.core.ids import BlockAttempt, RequestId, ServingMode, WorkerId, WorkerLife
from common.core.kv_retention import KvRetention
from common.core.page_pool import PagePool
from common.core.registry import RegistryCore
from common.core.unowned import Holding
from common.core.worker_blocks import WorkerBlocks
from common.core.worker_books import WorkerBooks
from tests.core.samples import kv_handle, request_spec
from tests.core.stage import Stage, decoder, only, prefiller

ATTEMPT = BlockAttempt(RequestId("r"), 0, 0)


def counts(found) -> dict[Holding, int]:
    """Sum of counts by kind."""
    totals: dict[Holding, int] = {}
    for unowned in found:
        totals[unowned.holding] = totals.get(unowned.holding, 0) + unowned.count
    return totals


def test_a_scheduler_names_requests_and_clients_without_each_other() -> None:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller(), decoder())
    stage.submit(request_spec("a"))
    assert counts(stage.core.unowned(())) == {Holding.REQUESTS: 1}
    assert counts(stage.core.unowned(("a", "b"))) == {Holding.REQUESTS: 1}
    assert stage.core.unowned(("a",)) == []


def test_a_scheduler_names_reservations_and_leases_whose_request_is_gone() -> None:
    stage = Stage(ServingMode.DISAGGREGATED, prefiller(), decoder())
    prefill = only(stage.submit(request_spec("a")), CallPrefill)
    pages = prefill.work.pages(4)
    stage.prefilled(prefill, [0])
    # The request's record is lost in the middle of the transfer, as by a bug.
    del stage.core._flow.book._requests[RequestId("a")]
    assert counts(stage.core.unowned(())) == {Holding.PAGES: pages, Holding.LEASES: 1, Holding.REQUESTS: 1}


def test_a_worker_names_pages_without_a_block_lost_pages_and_overdue_leases() -> None:
    pool = PagePool(16)
    retention = KvRetention(pool=pool, lease_s=30.0)
    books = WorkerBooks(pool=pool, blocks=WorkerBlocks(), retention=retention)
    assert [*books.unowned(0.0)] == []
    pool.allocate(ATTEMPT, 3)
    assert counts(books.unowned(0.0)) == {Holding.PAGES: 3}
    retention.retain(ATTEMPT, canvas_tokens=40, now=0.0)
    assert [*books.unowned(29.9)] == []
    assert counts(books.unowned(30.0)) == {Holding.LEASES: 1}
    retention.send_started(ATTEMPT, in_forward=False)
    assert [*books.unowned(31.0)] == [], "a send outlives the lease"
    pool._free_pages -= 2
    assert counts(books.unowned(0.0)) == {Holding.PAGES: 2}


def test_a_registry_names_entries_past_their_lease() -> None:
    registry = RegistryCore()
    registry.publish([kv_handle(ATTEMPT, WorkerLife(WorkerId("w"), 1), lease_s=5.0)], 0.0)
    assert registry.unowned(4.9) == []
    assert counts(registry.unowned(5.0)) == {Holding.LEASES: 1}
    registry.expire(5.0)
    assert registry.unowned(5.0) == []


def test_a_registry_names_entries_that_their_owner_has_left_behind() -> None:
    registry, life = RegistryCore(), WorkerLife(WorkerId("w"), 1)
    registry.publish([kv_handle(ATTEMPT, life, lease_s=5.0)], 0.0)
    assert registry.unowned(0.0) == []
    # The owner's list has lost it, as by a bug: no fence and no reconciliation finds it.
    registry._by_worker.clear()
    assert counts(registry.unowned(0.0)) == {Holding.LEASES: 1}
    assert registry.fence(life) == 0
    (found,) = registry.unowned(0.0)
    assert found.name == f"entry of {ATTEMPT}, of a life that is over"
