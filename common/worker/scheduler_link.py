"""The worker's tie to the scheduler that leads: registration, heartbeats up, orders down. Outlives any outage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from common.backoff import Backoff
from common.core.cluster import WorkerSpec
from common.core.defaults import DEFAULT_HEARTBEAT_KEEPALIVE_S, DEFAULT_REPORT_INTERVAL_S
from common.core.ids import MAX_TERM, BlockAttempt, WorkerLife
from common.core.work import IterationReport
from common.errors import InvalidRequest, Reason, WireError
from common.racing import race
from common.rpc.convert import (
    block_attempt_from_proto,
    block_attempt_to_proto,
    iteration_report_to_proto,
    worker_life_from_proto,
    worker_life_to_proto,
    worker_spec_to_proto,
)
from common.rpc.leader_watch import LeaderWatch
from common.rpc.status import wire_error
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from sangam.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

    HeartbeatStream = grpc.aio.StreamStreamCall[scheduler_pb2.HeartbeatRequest, scheduler_pb2.HeartbeatResponse]

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Between two ties, or tries at one."""

REGISTER_TIMEOUT_S = 5.0
"""Deadline of one RegisterWorker call."""

ANNOUNCE_TIMEOUT_S = 0.5
"""Longest wait for the heartbeat that says that this worker drains."""


STEADY_TIE_S = 5.0
"""A tie that ends sooner may end so every time: two workers with one id throw each other out again and again."""

MAX_INCARNATION = 2**64 - 1
"""Largest incarnation that the wire can carry."""


class SchedulerOrders(Protocol):
    """What the scheduler can tell a worker; called on the event loop."""

    async def on_registered(self) -> None:
        """The scheduler knows this life."""

    def on_life_ended(self, least_incarnation: int) -> None:
        """The scheduler counts this life as over: drop its work and become a new life before the next registration.

        Incarnations below `least_incarnation` would be refused (0: it did not say).
        """

    def on_release_kv(self, attempt: BlockAttempt) -> None:
        """The K/V retained for `attempt` is no longer needed."""

    def on_drain(self) -> None:
        """Finish what is here and exit."""

    def on_peer_lost(self, life: WorkerLife) -> None:
        """Close data-plane connections to that life."""

    def spec(self) -> WorkerSpec:
        """What to register, with the life of this moment."""


class SchedulerLink:
    """Registers, heartbeats, and starts over with backoff for as long as `run` runs.

    Of several `addresses` it follows the scheduler that leads. One life serves one term: the next leader is served by a
    new life, to which nothing of the old one counts, and a scheduler of a lower term than one served before is refused.
    Where two seem to lead it lets each know of the other's term: the one of the lower term hears that its time is over.

    Reports are coalesced: at most one message per `DEFAULT_REPORT_INTERVAL_S`, at least one per
    `DEFAULT_HEARTBEAT_KEEPALIVE_S` (more often for a scheduler with little patience).
    """

    def __init__(self, *, addresses: Sequence[str], orders: SchedulerOrders) -> None:
        self._watch = LeaderWatch(addresses)
        self._orders = orders
        self._highest_term = 0
        self._life_term = 0
        self._dirty = asyncio.Event()
        self._report: IterationReport | None = None
        self._kv_ended: list[BlockAttempt] = []
        self._draining = False
        self._drain_said = asyncio.Event()
        self._connected = False
        self._keepalive_s = DEFAULT_HEARTBEAT_KEEPALIVE_S

    def report(self, report: IterationReport) -> None:
        """Say this next; an older report that was not sent yet is dropped."""
        self._report = report
        self._dirty.set()

    def kv_ended(self, attempt: BlockAttempt) -> None:
        """Say that the K/V of `attempt` is no longer retained."""
        self._kv_ended.append(attempt)
        self._dirty.set()

    async def announce_draining(self) -> None:
        """Say from now on that this worker refuses new work; returns once said, or when nobody listens."""
        self._draining = True
        self._dirty.set()
        if self._connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drain_said.wait(), ANNOUNCE_TIMEOUT_S)

    async def run(self) -> None:
        """Keep the tie up, whatever the scheduler does; ends by cancellation, or with the tie once this worker drains.

        A draining worker never registers again: a scheduler that does not know it yet would give it work.
        """
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch.run())
            try:
                await self._keep_tied()
            finally:
                watching.cancel()

    async def _keep_tied(self) -> None:
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S, jitter=True)
        former = -1
        while not self._draining:
            leader = await self._watch.leading()
            if self._watch.reign != former:
                backoff.reset()
            former = self._watch.reign
            if self._draining:
                return
            stub = scheduler_pb2_grpc.SchedulerServiceStub(self._watch.channel(leader))
            refusal = await self._register(stub, leader)
            if refusal is None:
                refusal = await self._heartbeat_steadily(stub, leader, backoff)
            self._on_end(refusal, leader)
            await backoff.wait()

    def _registration(self) -> scheduler_pb2.RegisterWorkerRequest:
        request = worker_spec_to_proto(self._orders.spec())
        request.least_term, request.life_term = self._highest_term, self._life_term
        return request

    async def _register(self, stub: SchedulerServiceAsyncStub, leader: str) -> WireError | None:
        try:
            answer = await stub.RegisterWorker(self._registration(), timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return wire_error(error)
        if 0 < answer.term < self._highest_term:
            text = f"its term {answer.term} is over, this worker knows of {self._highest_term}"
            return WireError(Reason.STALE_INCARNATION, text)
        self._highest_term = max(self._highest_term, answer.term)
        self._life_term = answer.term
        log.info("registered with scheduler %s", leader)
        if answer.heartbeat_timeout_ms:
            # Several may be lost or late before the scheduler loses patience.
            self._keepalive_s = min(DEFAULT_HEARTBEAT_KEEPALIVE_S, answer.heartbeat_timeout_ms / 1000 / 4)
        await self._orders.on_registered()
        return None

    def _on_end(self, refusal: WireError | None, leader: str) -> None:
        next_step = "draining without it" if self._draining else "registering again"
        if refusal is None:
            log.warning("scheduler %s ended the heartbeat; %s", leader, next_step)
            return
        log.warning("scheduler %s: %s (%s); %s", leader, refusal, refusal.reason.value, next_step)
        if refusal.reason is Reason.STALE_INCARNATION:
            self._kv_ended.clear()
            self._life_term = 0
            self._orders.on_life_ended(_number(refusal, "least_incarnation", largest=MAX_INCARNATION))

    async def _heartbeat_steadily(
        self, stub: SchedulerServiceAsyncStub, leader: str, backoff: Backoff
    ) -> WireError | None:
        """As `_heartbeat`; only a tie that held for a while makes the next try an early one."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        refusal = await self._heartbeat(stub, leader)
        if loop.time() - started_s >= STEADY_TIE_S:
            backoff.reset()
        return refusal

    async def _heartbeat(self, stub: SchedulerServiceAsyncStub, leader: str) -> WireError | None:
        """Speak and listen until the stream ends or another scheduler leads; returns what it ended with."""
        stream = stub.Heartbeat()
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(stream))
            self._connected = True
            try:
                return await race(self._read(stream), self._until_succeeded(leader), self._until_outranked(leader))
            finally:
                self._connected = False
                writer.cancel()
                stream.cancel()

    async def _until_succeeded(self, leader: str) -> WireError:
        successor = await self._watch.other_than({leader})
        return WireError(Reason.NOT_LEADER, f"scheduler {successor} leads now")

    async def _until_outranked(self, leader: str) -> WireError:
        """Tell others that say that they lead too of the term served here; returns when one of them has a higher one.

        A leader that Redis does not answer goes on with its workers and cannot know of a successor but from them.
        """
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S, jitter=True)
        while True:
            rival = await self._watch.rival_of(leader)
            term = await self._term_of(rival)
            if term > self._highest_term:
                self._highest_term = term
                return WireError(Reason.NOT_LEADER, f"scheduler {rival} leads under a higher term, {term}")
            await backoff.wait()

    async def _term_of(self, rival: str) -> int:
        """The term of a scheduler that leads under another than this life's; 0 when it does not say.

        It refuses this life in any case: one that serves a term serves no other.
        """
        if not self._life_term:
            return 0
        stub = scheduler_pb2_grpc.SchedulerServiceStub(self._watch.channel(rival))
        try:
            await stub.RegisterWorker(self._registration(), timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return _number(wire_error(error), "term", largest=MAX_TERM)
        return 0

    async def _read(self, stream: HeartbeatStream) -> WireError | None:
        try:
            while isinstance(orders := await stream.read(), scheduler_pb2.HeartbeatResponse):
                self._obey(orders)
            code = await stream.code()
        except grpc.aio.AioRpcError as error:
            return wire_error(error)
        except InvalidRequest as nonsense:
            return nonsense
        return None if code is grpc.StatusCode.OK else WireError(Reason.PEER_LOST, f"the heartbeat ended {code}")

    def _obey(self, orders: scheduler_pb2.HeartbeatResponse) -> None:
        for attempt in orders.release_kv:
            self._orders.on_release_kv(block_attempt_from_proto(attempt))
        for life in orders.lost_peers:
            self._orders.on_peer_lost(worker_life_from_proto(life))
        if orders.drain:
            self._orders.on_drain()

    async def _write(self, stream: HeartbeatStream) -> None:
        """Send heartbeats until the stream ends; the reader learns why it did."""
        life = worker_life_to_proto(self._orders.spec().life)
        while True:
            message = self._next_message(life)
            try:
                await stream.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._kv_ended[:0] = map(block_attempt_from_proto, message.kv_ended)
                return
            if message.draining:
                self._drain_said.set()
            await asyncio.sleep(DEFAULT_REPORT_INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dirty.wait(), self._keepalive_s)

    def _next_message(self, life: types_pb2.WorkerLife) -> scheduler_pb2.HeartbeatRequest:
        """What is new since the last message; a bare keepalive when nothing is."""
        report, self._report = self._report, None
        kv_ended, self._kv_ended = self._kv_ended, []
        self._dirty.clear()
        return scheduler_pb2.HeartbeatRequest(
            life=life,
            report=None if report is None else iteration_report_to_proto(report),
            draining=self._draining,
            kv_ended=map(block_attempt_to_proto, kv_ended),
        )


def _number(refusal: WireError, name: str, *, largest: int) -> int:
    """What the scheduler says in its refusal under that name; 0 when that is no number up to `largest`."""
    told = refusal.metadata.get(name, "")
    value = int(told) if told.isascii() and told.isdigit() and len(told) <= len(str(largest)) else 0
    return value if value <= largest else 0
