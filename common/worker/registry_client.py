"""Tells the KV registry what this worker retains. Best effort: decoding never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from common.backoff import Backoff
from common.core.ids import BlockAttempt, WorkerLife
from common.core.work import KvHandle
from common.rpc.channel import open_channel
from common.rpc.convert import (
    block_attempt_from_proto,
    block_attempt_to_proto,
    kv_handle_to_proto,
    worker_life_to_proto,
)
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc

if TYPE_CHECKING:
    from sangam.v1.kv_registry_pb2_grpc import KvRegistryServiceAsyncStub

log = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Facts kept while the registry is slow; with more, all are dropped and a reconciliation makes up for them."""

RECONCILE_INTERVAL_S = 10.0
"""Time between reconciliations: a registry that restarts and forgets may well go unnoticed (calls are retried)."""

GATHER_S = 0.05
"""Time for facts to gather before an RPC: K/V fetched and freed within it is not worth one."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Between two tries to reach the registry."""

CALL_TIMEOUT_S = 2.0
"""Deadline of one registry RPC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What one life retains at one moment."""

    owner: WorkerLife
    handles: tuple[KvHandle, ...]


class RegistryClient:
    """Publishes and releases entries in the background, as many per RPC as are pending.

    `holdings` answers what is retained now: every `reconcile_interval_s` seconds, and in place of facts that a failed
    call may have lost, the registry is reconciled with it. An empty `address` means that there is no registry.
    """

    def __init__(
        self,
        *,
        address: str,
        holdings: Callable[[], Holdings],
        reconcile_interval_s: float = RECONCILE_INTERVAL_S,
    ) -> None:
        self._address = address
        self._holdings = holdings
        self._reconcile_interval_s = reconcile_interval_s
        self._reconcile_due_s = 0.0
        self._published: dict[BlockAttempt, KvHandle] = {}
        self._released: dict[BlockAttempt, WorkerLife] = {}
        self._dirty = asyncio.Event()
        self._must_reconcile = False

    def publish(self, handle: KvHandle) -> None:
        """Record K/V that this worker now retains. Returns at once."""
        if self._make_room():
            self._published[handle.attempt] = handle

    def release(self, owner: WorkerLife, attempt: BlockAttempt) -> None:
        """Remove an entry of this worker; one that was never sent is just not sent. Returns at once."""
        if self._published.pop(attempt, None) is None and self._make_room():
            self._released[attempt] = owner

    def _make_room(self) -> bool:
        """Whether a fact is wanted at all; forgets the pending ones when they are too many."""
        if not self._address:
            return False
        if len(self._published) + len(self._released) >= MAX_PENDING:
            self._must_reconcile = True
        self._dirty.set()
        return not self._must_reconcile

    async def run(self) -> None:
        """Send what is pending, for ever; ends only by cancellation. An outage of the registry only delays."""
        if not self._address:
            return
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S, jitter=True)
        self._put_off_reconciliation()
        async with open_channel(self._address) as channel:
            stub = kv_registry_pb2_grpc.KvRegistryServiceStub(channel)
            while True:
                await self._wait_for_work()
                await asyncio.sleep(GATHER_S)
                try:
                    await self._send_pending(stub)
                    backoff.reset()
                except grpc.aio.AioRpcError as error:
                    log.warning("KV registry %s: %s; trying again", self._address, error.code().name)
                    self._must_reconcile = True
                    await backoff.wait()

    async def _wait_for_work(self) -> None:
        """Return when something is pending or a reconciliation is due, which is noted."""
        now_s = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._dirty.wait(), max(0.0, self._reconcile_due_s - now_s))
        if asyncio.get_running_loop().time() >= self._reconcile_due_s:
            self._must_reconcile = True

    def _put_off_reconciliation(self) -> None:
        self._reconcile_due_s = asyncio.get_running_loop().time() + self._reconcile_interval_s

    async def _send_pending(self, stub: KvRegistryServiceAsyncStub) -> None:
        self._dirty.clear()
        try:
            if self._must_reconcile:
                await self._reconcile(stub)
            published, self._published = self._published, {}
            released, self._released = self._released, {}
            await _publish(stub, tuple(published.values()))
            await _release(stub, released)
        except grpc.aio.AioRpcError:
            self._dirty.set()
            raise

    async def _reconcile(self, stub: KvRegistryServiceAsyncStub) -> None:
        # No await before the call: what changed until now is in the snapshot, what changes later is pending again.
        self._published.clear()
        self._released.clear()
        self._must_reconcile = False
        self._put_off_reconciliation()
        now = self._holdings()
        handles = {handle.attempt: handle for handle in now.handles}
        request = pb.ReconcileKvRequest(
            owner=worker_life_to_proto(now.owner), held=[block_attempt_to_proto(attempt) for attempt in handles]
        )
        answer = await stub.ReconcileKv(request, timeout=CALL_TIMEOUT_S)
        await _publish(stub, [handles[block_attempt_from_proto(attempt)] for attempt in answer.unknown])


async def _publish(stub: KvRegistryServiceAsyncStub, handles: Sequence[KvHandle]) -> None:
    """Outcomes are not looked at: an entry that the registry refuses belongs to a life that has ended."""
    if handles:
        entries = [kv_handle_to_proto(handle) for handle in handles]
        await stub.PublishKv(pb.PublishKvRequest(entries=entries), timeout=CALL_TIMEOUT_S)


async def _release(stub: KvRegistryServiceAsyncStub, released: dict[BlockAttempt, WorkerLife]) -> None:
    for owner in dict.fromkeys(released.values()):
        attempts = [block_attempt_to_proto(attempt) for attempt, its_owner in released.items() if its_owner == owner]
        await stub.ReleaseKv(
            pb.ReleaseKvRequest(owner=worker_life_to_proto(owner), attempts=attempts), timeout=CALL_TIMEOUT_S
        )
