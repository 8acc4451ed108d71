"""A whole cluster as processes of this machine: used by `sangam up`, `sangam demo`, benchmarks and tests.

`async with Cluster(config) as cluster:` returns when every service serves and every worker is registered; leaving the
block stops them, gateway first. Services are named by string: `common` never imports `services`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import grpc.aio

from common.cli.run_dir import CLUSTER_FILE, RunningCluster, make_run_dir
from common.cli.supervisor import ManagedProcess, ProcessSpec, ServiceFailed, stop_all
from common.config_values import TokensOrAuto
from common.core.defaults import DEFAULT_OVERLOAD_THRESHOLD_TOKENS, DEFAULT_TOKEN_BUDGET_TOKENS
from common.core.ids import Role, ServingMode
from common.rpc.channel import open_channel
from sangam.v1 import scheduler_pb2, scheduler_pb2_grpc

START_TIMEOUT_S = 120.0
STOP_GRACE_S = 8.0
PROGRESS_INTERVAL_S = 3.0
REGISTRATION_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What to start. `grpc_port` 0 means any free port; `kv_pages` 0 lets each worker size its own pool.

    `device` may name several, separated by commas: they are dealt out to the workers in turn. `torch_threads` 0 shares
    all cores but one among the workers. `story_dir` gets the stories of the cores, for `sangam replay` (None: none).
    `worker_options` and `scheduler_options` are further flags for every worker and for the scheduler.
    """

    model_dir: Path
    run_dir: Path
    mode: ServingMode
    prefill_workers: int
    decode_workers: int
    host: str = "127.0.0.1"
    grpc_port: int = 0
    token_budget_tokens: TokensOrAuto = DEFAULT_TOKEN_BUDGET_TOKENS
    overload_threshold_tokens: TokensOrAuto = DEFAULT_OVERLOAD_THRESHOLD_TOKENS
    device: str = "cpu"
    dtype: str = "auto"
    kv_pages: int = 0
    torch_threads: int = 0
    kv_transport: str = "tcp"
    log_level: str = "info"
    story_dir: Path | None = None
    worker_options: tuple[str, ...] = field(default=())
    scheduler_options: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Every cluster has a decode worker; only hybrid leaves the number of prefill workers open."""
        assert self.decode_workers >= 1
        assert self.prefill_workers == 0 or self.mode is not ServingMode.COLOCATED
        assert self.prefill_workers >= 1 or self.mode is not ServingMode.DISAGGREGATED

    @property
    def workers(self) -> int:
        """Worker processes in all."""
        return self.prefill_workers + self.decode_workers

    @property
    def devices(self) -> tuple[str, ...]:
        """The torch devices that workers get in turn."""
        return tuple(self.device.split(","))

    @property
    def threads_per_worker(self) -> int:
        """torch threads of each worker.

        One core is left to the event loops: torch's threads spin while they wait for each other, and a service that
        gets no core then adds more than a thread saves (2 cores, one worker, 128 tokens: +33 ms became +52 ms).
        """
        return self.torch_threads or max(1, ((os.cpu_count() or 1) - 1) // self.workers)


class Cluster:
    """The processes of one cluster. `say` gets one line at a time for a person."""

    def __init__(self, config: ClusterConfig, *, say: Callable[[str], None] = lambda line: None) -> None:
        self.config = config
        self._say = say
        self._kv_store = self._managed("kv_store", "services.kv_store", self._story_arguments())
        self._scheduler: ManagedProcess | None = None
        self._gateway: ManagedProcess | None = None
        self._workers: list[ManagedProcess] = []
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Cluster:
        """Start everything and wait until it serves. Raises `ServiceFailed`, with everything stopped again."""
        make_run_dir(self.config.run_dir)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        self._write_cluster_file()
        self._watchers = [
            asyncio.create_task(process.supervise(), name=f"supervise {process.spec.name}") for process in self._all()
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop everything."""
        await self.stop()

    @property
    def gateway_address(self) -> str:
        """host:port where clients call."""
        assert self._gateway is not None, "not started"
        return self._gateway.address

    @property
    def scheduler_address(self) -> str:
        """host:port of the scheduler (status, drain)."""
        assert self._scheduler is not None, "not started"
        return self._scheduler.address

    @property
    def kv_store_address(self) -> str:
        """host:port of the registry."""
        return self._kv_store.address

    @property
    def processes(self) -> dict[str, int]:
        """Process id by service name, of those that run now."""
        return {process.spec.name: process.pid for process in self._all() if process.pid is not None}

    @property
    def addresses(self) -> dict[str, str]:
        """host:port by service name, of those that serve now."""
        return {process.spec.name: process.ready.address for process in self._all() if process.ready is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each service was restarted, by name."""
        return {process.spec.name: process.restarts for process in self._all()}

    async def watch(self) -> None:
        """Wait for ever while the services are supervised; raises if supervision itself fails."""
        await asyncio.gather(*self._watchers)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop gateway, workers, scheduler and kv_store, in this order; nothing of the cluster runs afterwards."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        groups = ([self._gateway], self._workers, [self._scheduler], [self._kv_store])
        for group in groups:
            await stop_all([process for process in group if process is not None], grace_s=STOP_GRACE_S)
        (self.config.run_dir / CLUSTER_FILE).unlink(missing_ok=True)

    async def _start(self) -> None:
        config = self.config
        await self._bring_up([self._kv_store])
        self._scheduler = self._managed("scheduler", "services.scheduler", self._scheduler_arguments())
        await self._bring_up([self._scheduler])
        prefills = [(Role.PREFILL, index) for index in range(config.prefill_workers)]
        decodes = [(Role.DECODE, index) for index in range(config.decode_workers)]
        placed = zip([*prefills, *decodes], itertools.cycle(config.devices), strict=False)
        self._workers = [self._worker(role, index, device) for (role, index), device in placed]
        self._gateway = self._managed("gateway", "services.gateway", self._gateway_arguments(), port=config.grpc_port)
        await self._bring_up([self._gateway, *self._workers])
        await wait_for_workers(self.scheduler_address, config.workers)

    async def _bring_up(self, processes: Iterable[ManagedProcess]) -> None:
        names = {process.spec.name: process for process in processes}
        self._say(f"starting {', '.join(names)} ...")
        progress = asyncio.create_task(self._tell_progress(names))
        failures: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as group:
                for process in names.values():
                    group.create_task(process.start(timeout_s=START_TIMEOUT_S))
        except* ServiceFailed as failed:
            failures.extend(failed.exceptions)
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
        if failures:
            raise failures[0]

    async def _tell_progress(self, processes: dict[str, ManagedProcess]) -> None:
        waited_s = 0.0
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            waited_s += PROGRESS_INTERVAL_S
            awaited = [name for name, process in processes.items() if process.ready is None]
            self._say(f"waiting for {', '.join(awaited)} ({waited_s:.0f} s so far)")

    def _worker(self, role: Role, index: int, device: str) -> ManagedProcess:
        config, name = self.config, f"{role.value}-{index}"
        arguments = {
            "--worker-id": name,
            "--scheduler-address": self.scheduler_address,
            "--kv-store-address": self.kv_store_address,
            "--model-dir": str(config.model_dir),
            "--device": device,
            "--dtype": config.dtype,
            "--kv-pages": str(config.kv_pages),
            "--token-budget": str(config.token_budget_tokens),
            "--torch-threads": str(config.threads_per_worker),
            "--kv-transport": config.kv_transport,
        }
        flags = [part for pair in arguments.items() for part in pair]
        flags += [*self._story_arguments(), *config.worker_options]
        return self._managed(name, f"services.{role.value}_worker", tuple(flags), may_end=True)

    def _story_arguments(self) -> tuple[str, ...]:
        return () if self.config.story_dir is None else ("--story-dir", str(self.config.story_dir))

    def _scheduler_arguments(self) -> tuple[str, ...]:
        return (
            *("--mode", self.config.mode.value),
            *("--overload-threshold", str(self.config.overload_threshold_tokens)),
            *("--kv-store-address", self.kv_store_address),
            *self._story_arguments(),
            *self.config.scheduler_options,
        )

    def _gateway_arguments(self) -> tuple[str, ...]:
        return (
            *("--host", self.config.host),
            *("--scheduler-address", self.scheduler_address),
            *("--model-dir", str(self.config.model_dir)),
        )

    def _managed(
        self, name: str, module: str, arguments: tuple[str, ...], *, port: int = 0, may_end: bool = False
    ) -> ManagedProcess:
        arguments = (*arguments, "--log-level", self.config.log_level)
        spec = ProcessSpec(name=name, module=module, arguments=arguments, may_end=may_end, port=port)
        return ManagedProcess(spec, run_dir=self.config.run_dir, say=self._say)

    def _all(self) -> list[ManagedProcess]:
        known = [self._gateway, self._scheduler, *self._workers, self._kv_store]
        return [process for process in known if process is not None]

    def _write_cluster_file(self) -> None:
        facts = RunningCluster(
            pid=os.getpid(),
            gateway=self.gateway_address,
            scheduler=self.scheduler_address,
            mode=self.config.mode.value,
            kv_store=self.kv_store_address,
        )
        facts.write(self.config.run_dir)


async def wait_for_workers(scheduler_address: str, count: int) -> None:
    """Wait until the scheduler counts `count` registered workers. Raises ServiceFailed when that takes too long."""
    registered = 0
    try:
        async with asyncio.timeout(START_TIMEOUT_S), open_channel(scheduler_address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            while registered < count:
                state = await stub.GetClusterState(scheduler_pb2.GetClusterStateRequest(), wait_for_ready=True)
                registered = len(state.workers)
                await asyncio.sleep(REGISTRATION_POLL_S)
    except (TimeoutError, grpc.aio.AioRpcError):
        missing = f"only {registered} of {count} workers registered within {START_TIMEOUT_S:.0f} s"
        raise ServiceFailed(f"{missing}; the logs in the run folder say why") from None
