"""The registry hears what is retained, also after it was away; nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.work import KvHandle
from common.worker.registry_client import MAX_PENDING, Holdings, RegistryClient
from tests.worker.registry_double import RegistryDouble, start_registry
from tests.worker.waiting import PATIENCE_S, eventually

LIFE = WorkerLife(WorkerId("p"), 7)


class Owner:
    """What a worker retains, told to the client as it changes."""

    def __init__(self, address: str, *, reconcile_interval_s: float = 60.0) -> None:
        self.held: dict[BlockAttempt, KvHandle] = {}
        self.client = RegistryClient(address=address, holdings=self.holdings, reconcile_interval_s=reconcile_interval_s)

    def holdings(self) -> Holdings:
        return Holdings(owner=LIFE, handles=tuple(self.held.values()))

    def retain(self, name: str) -> None:
        attempt = BlockAttempt(RequestId(name), 0, 0)
        self.held[attempt] = KvHandle(
            attempt=attempt,
            owner=LIFE,
            transport="tcp",
            address="127.0.0.1:1",
            layout_fingerprint="ab",
            canvas_tokens=64,
            pages=4,
            lease_s=30.0,
        )
        self.client.publish(self.held[attempt])

    def forget(self, name: str) -> None:
        attempt = BlockAttempt(RequestId(name), 0, 0)
        del self.held[attempt]
        self.client.release(LIFE, attempt)


@asynccontextmanager
async def running(owner: Owner) -> AsyncIterator[None]:
    task = asyncio.create_task(owner.client.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def agree(owner: Owner, double: RegistryDouble) -> None:
    await eventually(lambda: double.entries == set(owner.held))


async def test_what_is_retained_is_published_and_released_in_few_calls() -> None:
    double, server, address = await start_registry()
    owner = Owner(address)
    for index in range(100):
        owner.retain(str(index))
    async with running(owner):
        await agree(owner, double)
        assert double.calls == 1
        for index in range(60):
            owner.forget(str(index))
        await agree(owner, double)
        assert double.calls == 2
        assert double.released_by == {LIFE.incarnation}
    await server.stop(0)


async def test_what_was_never_sent_is_never_sent() -> None:
    double, server, address = await start_registry()
    owner = Owner(address)
    owner.retain("short-lived")
    owner.forget("short-lived")
    owner.retain("kept")
    async with running(owner):
        await agree(owner, double)
        assert double.calls == 1
    await server.stop(0)


async def test_an_entry_released_while_its_publication_is_under_way_is_released_after_it() -> None:
    double, server, address = await start_registry()
    owner = Owner(address)
    double.gate.clear()
    owner.retain("a")
    async with running(owner):
        await eventually(lambda: double.calls == 1)
        owner.forget("a")
        double.gate.set()
        await eventually(lambda: double.calls == 2)
        await agree(owner, double)
    await server.stop(0)


async def test_a_registry_that_comes_back_empty_learns_everything_again() -> None:
    double, server, address = await start_registry()
    owner = Owner(address, reconcile_interval_s=0.1)
    async with running(owner):
        owner.retain("before")
        await agree(owner, double)
        await server.stop(0)
        owner.retain("while away")
        await asyncio.sleep(0.2)
        second, server, _ = await start_registry(int(address.rpartition(":")[2]))
        await agree(owner, second)
        assert len(second.entries) == 2
    await server.stop(0)


async def test_a_call_that_fails_is_made_up_for_by_a_reconciliation() -> None:
    double, server, address = await start_registry()
    owner = Owner(address)
    double.faults = 1
    async with running(owner):
        owner.retain("lost by the failed call")
        await agree(owner, double)
        assert double.calls == 3, "the failed publication, a reconciliation, the publication of what it found missing"
    await server.stop(0)


async def test_more_facts_than_are_kept_end_in_one_reconciliation() -> None:
    double, server, address = await start_registry()
    double.entries = {BlockAttempt(RequestId("from an earlier mistake"), 0, 0)}
    owner = Owner(address)
    for index in range(MAX_PENDING + 10):
        owner.retain(str(index))
    async with running(owner):
        await agree(owner, double)
        assert double.calls == 2
    await server.stop(0)


async def test_without_a_registry_nothing_is_kept_and_run_returns() -> None:
    owner = Owner("")
    owner.retain("a")
    owner.forget("a")
    async with asyncio.timeout(PATIENCE_S):
        await owner.client.run()
