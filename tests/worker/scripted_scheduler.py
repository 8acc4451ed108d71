"""A scheduler that does what a test says: real gRPC, no policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from common.core.ids import WorkerLife
from common.errors import Reason, WireError
from common.rpc.convert import worker_life_from_proto, worker_spec_from_proto
from common.rpc.server import RpcServer
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from tests.worker.waiting import PATIENCE_S


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Accepts every life but those in `ended` and below `least_incarnation`; notes what it hears, sends `order`s.

    With a `term` other than 0 it also refuses lives that have served another. It never believes that a higher one is
    about, but notes what it is told (`met`).
    """

    def __init__(self) -> None:
        self.registered: list[WorkerLife] = []
        self.heartbeats: list[scheduler_pb2.HeartbeatRequest] = []
        self.ended: set[WorkerLife] = set()
        self.least_incarnation = 0
        self.term = 0
        self.met = 0
        self.changed = asyncio.Condition()
        self._orders: dict[str, asyncio.Queue[scheduler_pb2.HeartbeatResponse | WireError]] = {}

    def order(self, worker_id: str, orders: scheduler_pb2.HeartbeatResponse) -> None:
        """Send `orders` down the worker's heartbeat."""
        self._orders[worker_id].put_nowait(orders)

    def end_life(self, life: WorkerLife) -> None:
        """Count that life as over and say so on its heartbeat."""
        self.ended.add(life)
        self._orders[life.worker_id].put_nowait(WireError(Reason.STALE_INCARNATION, "this life is over"))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds; it is looked at after every message."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(condition)

    async def RegisterWorker(
        self, request: scheduler_pb2.RegisterWorkerRequest, context: object
    ) -> scheduler_pb2.RegisterWorkerResponse:
        spec = worker_spec_from_proto(request)
        await self._note(lambda: setattr(self, "met", max(self.met, request.least_term)))
        if spec.life in self.ended:
            raise WireError(Reason.STALE_INCARNATION, "this life is over")
        if self.term and request.life_term not in (0, self.term):
            raise WireError(Reason.STALE_INCARNATION, "of another term", metadata={"term": str(self.term)})
        if spec.life.incarnation < self.least_incarnation:
            told = {"least_incarnation": str(self.least_incarnation)}
            raise WireError(Reason.STALE_INCARNATION, "this life is over", metadata=told)
        await self._note(lambda: self.registered.append(spec.life))
        return scheduler_pb2.RegisterWorkerResponse(
            mode=types_pb2.SERVING_MODE_HYBRID, heartbeat_timeout_ms=3000, term=self.term
        )

    async def Heartbeat(
        self, request_iterator: AsyncIterator[scheduler_pb2.HeartbeatRequest], context: object
    ) -> AsyncIterator[scheduler_pb2.HeartbeatResponse]:
        first = await anext(aiter(request_iterator))
        life = worker_life_from_proto(first.life)
        orders = self._orders[life.worker_id] = asyncio.Queue()
        await self._note(lambda: self.heartbeats.append(first))
        async with asyncio.TaskGroup() as tasks:
            listener = tasks.create_task(self._listen(request_iterator))
            try:
                while True:
                    message = await orders.get()
                    if isinstance(message, WireError):
                        raise message
                    yield message
            finally:
                listener.cancel()

    async def _listen(self, requests: AsyncIterator[scheduler_pb2.HeartbeatRequest]) -> None:
        async for request in requests:
            await self._note(partial(self.heartbeats.append, request))

    async def _note(self, change: Callable[[], object]) -> None:
        async with self.changed:
            change()
            self.changed.notify_all()


class SchedulerServer:
    """A `ScriptedScheduler` behind a port; `stop` and a new one on the same port is a scheduler restart."""

    def __init__(self) -> None:
        # The methods that no worker calls stay UNIMPLEMENTED, as in the generated base class.
        make: Any = ScriptedScheduler
        self.scheduler: ScriptedScheduler = make()
        self.address = ""
        self._rpc = RpcServer(service_names=["sangam.v1.SchedulerService"])
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.scheduler, self._rpc.grpc)

    async def start(self, port: int = 0, *, leading: bool = True) -> None:
        """Listen on loopback, and serve unless it does not lead."""
        self.address = await self._rpc.start("127.0.0.1", port)
        await self.lead(leading)

    async def lead(self, leading: bool) -> None:
        """Say by its health whether it leads; it answers all the same."""
        await self._rpc.set_serving(leading)

    async def stop(self) -> None:
        """Break every call at once."""
        await self._rpc.stop(0)
