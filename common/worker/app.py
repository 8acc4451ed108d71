"""One worker: core, forward thread, data plane, servicers and the ties to scheduler and registry, put together."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from common.clock import Clock, MonotonicClock
from common.config import WorkerConfig
from common.config_values import AUTO, parse_addresses, tokens_or
from common.core.cluster import WorkerSpec
from common.core.defaults import DEFAULT_KV_PAGE_WAIT_S, DEFAULT_TOKEN_BUDGET_TOKENS
from common.core.ids import BlockAttempt, Role, WorkerId, WorkerLife
from common.core.worker import WorkerCore
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_effects import WorkerEffect
from common.core.worker_events import (
    IterationCompleted,
    KvReleased,
    KvSendEnded,
    KvSendStarted,
    LifeEnded,
    WorkCancelled,
)
from common.core.worker_view import WorkerView
from common.engine.engine import Engine
from common.errors import ConfigError, Reason
from common.metrics.leaks import LeakWatch
from common.rpc.advertise import advertised_address
from common.rpc.server import RpcServer
from common.rpc.service import write_ready_file
from common.story.cores import WORKER
from common.story.writer import open_story
from common.transport.factory import make_transport
from common.worker.calls import CallTable
from common.worker.core_loop import CoreLoop
from common.worker.forward_thread import JOIN_TIMEOUT_S, ForwardJob, ForwardThread
from common.worker.forward_watch import ForwardStuck, watch_forwards
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging
from common.worker.measures import WorkerMeasures
from common.worker.performer import Performer
from common.worker.reception import Reception
from common.worker.registry_client import Holdings, RegistryClient
from common.worker.retained_kv import RetainedKv
from common.worker.scheduler_link import SchedulerLink
from common.worker.servicers import DecodeServicer, PrefillServicer
from common.worker.unowned import UnownedOfWorker
from sangam.v1 import decode_pb2_grpc, prefill_pb2_grpc

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
"""Time for the last answers to leave the server."""

SERVICE_NAMES = {Role.PREFILL: "sangam.v1.PrefillService", Role.DECODE: "sangam.v1.DecodeService"}


class WorkerApp:
    """A worker of one role around a loaded engine. `run` serves until told to stop; the app is used once.

    Implements `SchedulerOrders`. Everything but the forwards runs on one event loop; a bug anywhere ends `run` with
    the exception, so that the process dies loudly and its supervisor starts a new life.
    """

    def __init__(self, *, role: Role, config: WorkerConfig, engine: Engine, clock: Clock | None = None) -> None:
        self._role = role
        self._config = config
        self._engine = engine
        self._clock = clock or MonotonicClock()
        worker_id = config.worker_id or f"{role.value}-{secrets.token_hex(3)}"
        self._life = WorkerLife(worker_id=WorkerId(worker_id), incarnation=time.time_ns())
        self._stop = asyncio.Event()
        self._address = ""
        self._kv_address = ""
        self._rpc: RpcServer | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._bug: BaseException | None = None
        self._bug_found = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._calls = CallTable()
        self._retained = RetainedKv()
        self._core_loop = self._make_core_loop()
        self._transport = make_transport(config.kv_transport)
        self._staging = KvStaging(engine.pool)
        self._serving = self._make_serving()
        self._link = SchedulerLink(addresses=parse_addresses(config.scheduler_address), orders=self)
        self._registry = RegistryClient(address=config.kv_store_address, holdings=self._holdings)
        self._forward = ForwardThread(
            engine,
            complete=self._core_loop.complete if role is Role.DECODE else self._complete_on_loop,
            on_failed=self._on_bug,
            fence=self._staging.fence,
            on_layer=self._serving.layer_computed if role is Role.PREFILL else None,
            wants_layers=lambda: self._serving.is_read_early,
        )
        self._performer = self._make_performer()
        self._reception = self._make_reception()
        unowned = UnownedOfWorker(
            core=self._core_loop, calls=self._calls, retained=self._retained, serving=self._serving
        )
        self._leaks = LeakWatch(clock=self._clock, unowned=unowned, check=self._core_loop.check_at_rest)

    @property
    def life(self) -> WorkerLife:
        """The life this worker lives now."""
        return self._life

    @property
    def address(self) -> str:
        """host:port where peers reach the gRPC server; "" until it listens."""
        return self._address

    def view(self) -> WorkerView:
        """A snapshot of the core."""
        return self._core_loop.view()

    def check_conservation(self) -> None:
        """Assert that the core's pages add up."""
        self._core_loop.check_conservation()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set (the scheduler's drain order sets it too), then drain and close.

        Raises ConfigError when a port cannot be had; an ExceptionGroup holds whatever bug ended the worker, or the
        `ForwardStuck` of a forward that would not end.
        """
        self._stop = stop
        try:
            await self._open()
            await self._serve()
        finally:
            await self._transport.aclose()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._forward.start()
            parts = (
                self._raise_bug(),
                self._link.run(),
                self._registry.run(),
                self._transport.watch(),
                watch_forwards(self._forward, limit_s=self._config.stuck_forward_s, on_stuck=self._on_bug),
                self._leaks.run(),
            )
            background = [tasks.create_task(part) for part in parts]
            try:
                await self._stop.wait()
                await self._drain()
            finally:
                await self._close()
                for task in background:
                    task.cancel()

    async def _open(self) -> None:
        """Open the ports, the data plane's first: whoever learns the gRPC address may come for K/V."""
        config = self._config
        if self._role is Role.PREFILL:
            self._kv_address = self._advertised(await self._listen_for_kv())
        self._rpc = RpcServer(service_names=[SERVICE_NAMES[self._role]])
        if self._role is Role.PREFILL:
            prefill_pb2_grpc.add_PrefillServiceServicer_to_server(PrefillServicer(self._reception), self._rpc.grpc)
        else:
            decode_pb2_grpc.add_DecodeServiceServicer_to_server(DecodeServicer(self._reception), self._rpc.grpc)
        bound = await self._rpc.start(config.host, config.port)
        self._address = self._advertised(bound)
        write_ready_file(
            config.ready_file,
            service=f"{self._role.value}_worker",
            address=bound,
            worker_id=self._life.worker_id,
            incarnation=self._life.incarnation,
        )
        log.info("%s life %d listens on %s", self._life.worker_id, self._life.incarnation, self._address)

    async def _listen_for_kv(self) -> str:
        try:
            return await self._transport.listen(self._config.host, self._serving, port=self._config.kv_port)
        except OSError as error:
            where = f"--host {self._config.host} --kv-port {self._config.kv_port}"
            raise ConfigError(f"{where}: cannot listen there: {error.strerror}") from None

    def _advertised(self, bound: str) -> str:
        return advertised_address(
            bound,
            advertise_host=self._config.advertise_host,
            listen_host=self._config.host,
            towards=parse_addresses(self._config.scheduler_address),
            option="--scheduler-address",
        )

    async def _drain(self) -> None:
        """Take nothing new, let what is here end for `drain_s` at most; what is left then is handed back."""
        log.info("%s drains", self._life.worker_id)
        assert self._rpc is not None
        await self._rpc.set_serving(False)
        await self._link.announce_draining()
        self._reception.close()
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self._calls.wait_empty()
                await self._retained.wait_empty()
        except TimeoutError:
            log.warning("handing %d calls back after %g s", len(self._calls), self._config.drain_s)

    async def _close(self) -> None:
        """Hand back what is left and close, also after a bug (then the core is not asked any more)."""
        assert self._rpc is not None
        self._reception.close()
        self._calls.fail_all(Reason.WORKER_DRAINING, f"{self._life.worker_id} ends")
        self._core_loop.feed(LifeEnded())
        await self._rpc.stop(STOP_GRACE_S)
        # A forward that is known to hang is not waited for again.
        hangs = isinstance(self._bug, ForwardStuck)
        try:
            await self._forward.close(timeout_s=0.0 if hangs else JOIN_TIMEOUT_S)
        finally:
            self._core_loop.stop()
            await self._transport.aclose()

    async def _raise_bug(self) -> None:
        await self._bug_found.wait()
        assert self._bug is not None
        raise self._bug

    def _on_bug(self, bug: BaseException) -> None:
        """A forward or the core has failed, or hangs: this process ends, and its callers try elsewhere."""
        if self._bug is None:
            log.critical("%s ends: %s", self._life.worker_id, bug, exc_info=bug)
            self._bug = bug
            self._core_loop.stop()
            self._calls.fail_all(Reason.PEER_LOST, f"{self._life.worker_id} has failed")
            self._bug_found.set()

    # What the scheduler says (SchedulerOrders).

    def spec(self) -> WorkerSpec:
        """What this life registers."""
        layout, config = self._engine.layout, self._config
        return WorkerSpec(
            life=self._life,
            role=self._role,
            address=self._address,
            kv_transport=self._transport.name,
            kv_address=self._kv_address,
            layout_fingerprint=layout.fingerprint,
            model_id=layout.model_id,
            pages_total=self._engine.pool.num_pages,
            page_size_tokens=layout.page_size_tokens,
            max_canvas_tokens=self._engine.config.max_canvas_tokens,
            token_budget_tokens=tokens_or(config.token_budget, DEFAULT_TOKEN_BUDGET_TOKENS),
            max_batch_size=config.max_batch_size,
            max_prefill_tokens_per_batch=config.max_prefill_tokens_per_batch,
            fast_link_domain=config.fast_link_domain,
            model_fingerprint=layout.model_fingerprint,
        )

    async def on_registered(self) -> None:
        """The scheduler knows this life: healthy, unless on the way out."""
        if self._rpc is not None and not self._stop.is_set():
            await self._rpc.set_serving(True)

    def on_life_ended(self, least_incarnation: int) -> None:
        """The scheduler has given this life up: drop its work, live another."""
        self._core_loop.feed(LifeEnded())
        # The clock may have been set back since an earlier life took its incarnation from it.
        incarnation = max(time.time_ns(), self._life.incarnation + 1, least_incarnation)
        self._life = WorkerLife(worker_id=self._life.worker_id, incarnation=incarnation)
        self._serving.end_waits()
        log.warning("%s starts life %d", self._life.worker_id, incarnation)

    def on_release_kv(self, attempt: BlockAttempt) -> None:
        """Nobody will come for that K/V, nor for what its prefill is still to compute.

        A prefill that is cancelled may end between this word and the end of its call, which comes another way: what it
        then left would stay until its lease runs out.
        """
        self._core_loop.feed(WorkCancelled(attempt=attempt))

    def on_drain(self) -> None:
        """End as a SIGTERM would."""
        self._stop.set()

    def on_peer_lost(self, life: WorkerLife) -> None:
        """Fetches from that life end now instead of at their timeout."""
        self._spawn(self._transport.close_peer(life))

    # Joints between the parts.

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        assert self._tasks is not None, "the worker runs"
        return self._tasks.create_task(work)

    def _complete_on_loop(self, event: IterationCompleted) -> ForwardJob | None:
        """Prefill role, on the forward thread: readers of its pages live on the event loop, so that goes first."""
        self._loop.call_soon_threadsafe(self._forward_completed, event)
        return None

    def _forward_completed(self, event: IterationCompleted) -> None:
        """What the core has not retained by the end of its turn is not to be had."""
        self._core_loop.feed(event)
        self._serving.retract([attempt for attempt, _ in event.deltas])

    def _perform(self, effect: WorkerEffect) -> None:
        self._performer.perform(effect)

    def _holdings(self) -> Holdings:
        return Holdings(owner=self._life, handles=self._retained.handles())

    def _make_core_loop(self) -> CoreLoop:
        settings = _core_config(self._role, self._config, self._engine)
        return CoreLoop(
            WorkerCore(settings),
            story=open_story(self._config.story_dir, core=WORKER, service=self._life.worker_id, config=settings),
            clock=self._clock,
            perform=self._perform,
            submit=lambda job: self._performer.run_forward(job),
            on_bug=self._on_bug,
        )

    def _make_serving(self) -> KvServing:
        feed = self._core_loop.feed
        return KvServing(
            staging=self._staging,
            clock=self._clock,
            life=lambda: self._life,
            on_send_started=lambda attempt: feed(KvSendStarted(attempt=attempt)),
            on_send_ended=lambda attempt: feed(KvSendEnded(attempt=attempt)),
            on_delivered=lambda attempt: feed(KvReleased(attempt=attempt)),
        )

    def _make_performer(self) -> Performer:
        return Performer(
            model=self._engine.config,
            staging=self._staging,
            clock=self._clock,
            life=lambda: self._life,
            kv_address=lambda: self._kv_address,
            calls=self._calls,
            retained=self._retained,
            transport=self._transport,
            serving=self._serving,
            link=self._link,
            registry=self._registry,
            forward=self._forward,
            spawn=self._spawn,
            feed=self._core_loop.feed,
            measures=WorkerMeasures(self._role),
        )

    def _make_reception(self) -> Reception:
        return Reception(
            calls=self._calls,
            model=self._engine.config,
            layout=self._engine.layout,
            readable=self._transport.readable,
            life=lambda: self._life,
            core=self._core_loop,
        )


def _core_config(role: Role, config: WorkerConfig, engine: Engine) -> WorkerCoreConfig:
    return WorkerCoreConfig(
        role=role,
        pages_total=engine.pool.num_pages,
        page_size_tokens=engine.layout.page_size_tokens,
        token_budget_tokens=tokens_or(config.token_budget, DEFAULT_TOKEN_BUDGET_TOKENS),
        token_budget_adapts=config.token_budget == AUTO,
        target_decode_gap_s=config.target_decode_gap_s,
        max_prefill_tokens_per_batch=config.max_prefill_tokens_per_batch,
        max_batch_size=config.max_batch_size,
        kv_lease_s=config.kv_lease_s,
        kv_page_wait_s=DEFAULT_KV_PAGE_WAIT_S,
        eos_token_id=engine.config.eos_token_id,
    )
