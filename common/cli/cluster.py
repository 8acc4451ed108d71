"""A whole cluster as processes of this machine: used by `sangam up`, `sangam demo`, benchmarks and tests.

`async with Cluster(config) as cluster:` returns when every service serves and every worker is registered; leaving the
block stops them, gateway first. Services are named by string: `common` never imports `services`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType

from common.cli.arguments import make_folder
from common.cli.cluster_config import ClusterConfig
from common.cli.run_dir import CLUSTER_FILE, RunningCluster
from common.cli.service_specs import ServiceSpecs
from common.cli.status import fetch_state
from common.cli.supervisor import ManagedProcess, ProcessSpec, ServiceFailed, stop_all
from common.errors import WireError

START_TIMEOUT_S = 120.0
STOP_MARGIN_S = 5.0
"""A service is killed this long after the time it has for its work in flight."""
PROGRESS_INTERVAL_S = 3.0
REGISTRATION_POLL_S = 0.05


class Cluster:
    """The processes of one cluster. `say` gets one line at a time for a person."""

    def __init__(self, config: ClusterConfig, *, say: Callable[[str], None] = lambda line: None) -> None:
        self.config = config
        self._say = say
        self._redis: ManagedProcess | None = None
        self._kv_store: ManagedProcess | None = None
        self._schedulers: list[ManagedProcess] = []
        self._gateway: ManagedProcess | None = None
        self._workers: list[ManagedProcess] = []
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Cluster:
        """Start everything and wait until it serves. Raises `ServiceFailed`, with everything stopped again."""
        make_folder(self.config.run_dir, "--run-dir")
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
        """host:port of the scheduler, of several with commas (status, drain)."""
        assert self._schedulers, "not started"
        return ",".join(scheduler.address for scheduler in self._schedulers)

    @property
    def kv_store_address(self) -> str:
        """host:port of the registry."""
        assert self._kv_store is not None, "not started"
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

    @property
    def renewable(self) -> dict[str, ManagedProcess]:
        """What `renew` restarts, by name: all services of ours, and no Redis, in which the schedulers' lease is."""
        return {process.spec.name: process for process in self._all() if process is not self._redis}

    async def watch(self) -> None:
        """Wait for ever while the services are supervised; raises if supervision itself fails."""
        await asyncio.gather(*self._watchers)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop gateway, workers, schedulers, registry, in this order; nothing of the cluster runs afterwards."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        groups = ([self._gateway], self._workers, self._schedulers, [self._kv_store], [self._redis])
        for group in groups:
            await stop_all([process for process in group if process is not None], grace_s=self._grace_s)
        (self.config.run_dir / CLUSTER_FILE).unlink(missing_ok=True)

    async def renew(self, names: Sequence[str] = ()) -> AsyncIterator[str]:
        """Restart these services (none named: all of ours) one after the other, each in order; yields the name of each.

        The next one's turn comes when the cluster is whole again. A drained worker stays away. Raises ServiceFailed
        when a service does not come back, before any further one is touched.
        """
        for name, process in self.renewable.items():
            if (names and name not in names) or process.pid is None:
                continue
            await process.renew(grace_s=self._grace_s)
            await wait_for_workers(self.scheduler_address, sum(worker.pid is not None for worker in self._workers))
            yield name

    @property
    def _grace_s(self) -> float:
        return self.config.drain_s + STOP_MARGIN_S

    async def _start(self) -> None:
        specs, registry = ServiceSpecs(self.config), self.config.registry
        if not registry:
            self._redis = self._managed(specs.redis())
            await self._bring_up([self._redis])
            registry = f"redis://{self._redis.address}/0"
        self._kv_store = self._managed(specs.kv_store(registry))
        await self._bring_up([self._kv_store])
        kv_store = self.kv_store_address
        self._schedulers = [self._managed(spec) for spec in specs.schedulers(kv_store=kv_store, lease=registry)]
        await self._bring_up(self._schedulers)
        schedulers = self.scheduler_address
        self._workers = [self._managed(spec) for spec in specs.workers(kv_store=kv_store, schedulers=schedulers)]
        self._gateway = self._managed(specs.gateway(schedulers=schedulers))
        await self._bring_up([self._gateway, *self._workers])
        await wait_for_workers(schedulers, self.config.workers)

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

    def _managed(self, spec: ProcessSpec) -> ManagedProcess:
        return ManagedProcess(spec, run_dir=self.config.run_dir, say=self._say)

    def _all(self) -> list[ManagedProcess]:
        known = [self._gateway, *self._schedulers, *self._workers, self._kv_store, self._redis]
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


async def wait_for_workers(schedulers: str, count: int) -> None:
    """Wait until the scheduler that leads counts `count` workers. Raises ServiceFailed when that takes too long."""
    registered = 0
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while registered < count:
                with contextlib.suppress(WireError):  # none leads yet
                    registered = len((await fetch_state(schedulers)).workers)
                await asyncio.sleep(REGISTRATION_POLL_S)
    except TimeoutError:
        missing = f"only {registered} of {count} workers registered within {START_TIMEOUT_S:.0f} s"
        raise ServiceFailed(f"{missing}; the logs in the run folder say why") from None
