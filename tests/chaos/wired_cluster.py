"""A cluster of which some workers reach everybody, and are reached, over wires that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from common.cli.cluster import Cluster
from common.cli.cluster_config import ClusterConfig
from common.core.ids import ServingMode
from tests.chaos.wire import Wire
from tests.integration.cluster_help import processes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What runs; two schedulers bring a Redis of their own. `wired` names the workers whose network can be cut."""

    schedulers: int
    prefill_workers: int
    decode_workers: int
    wired: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredCluster:
    """A running cluster, the wires of its wired workers, and where its stories lie."""

    cluster: Cluster
    wires: Mapping[str, tuple[Wire, ...]]
    story_dir: Path


@asynccontextmanager
async def wired_cluster(
    fleet: Fleet, model_dir: Path, run_dir: Path, *, say: Callable[[str], None]
) -> AsyncIterator[WiredCluster]:
    """Start the fleet in hybrid mode; afterwards none of its processes may be left."""
    found: list[Cluster] = []

    def scheduler(index: int) -> Callable[[], str]:
        return lambda: found[0].scheduler_address.split(",")[index]

    schedulers = [scheduler(index) for index in range(fleet.schedulers)]
    bundles = {
        name: _Bundle(f"127.0.0.{20 + index}", schedulers, lambda: found[0].kv_store_address)
        for index, name in enumerate(fleet.wired)
    }
    config = ClusterConfig(
        model_dir=model_dir,
        run_dir=run_dir,
        mode=ServingMode.HYBRID,
        schedulers=fleet.schedulers,
        registry="memory" if fleet.schedulers == 1 else "",
        prefill_workers=fleet.prefill_workers,
        decode_workers=fleet.decode_workers,
        torch_threads=1,
        story_dir=run_dir / "stories",
        options_of={name: bundle.options for name, bundle in bundles.items()},
    )
    found.append(Cluster(config, say=say))
    async with asyncio.TaskGroup() as tasks:
        carrying = [tasks.create_task(wire.run()) for bundle in bundles.values() for wire in bundle.wires]
        try:
            async with found[0] as cluster:
                wires = {name: bundle.wires for name, bundle in bundles.items()}
                yield WiredCluster(cluster=cluster, wires=wires, story_dir=run_dir / "stories")
        finally:
            for task in carrying:
                task.cancel()
    assert processes_of(run_dir) == [], "processes are left"


class _Bundle:
    """The wires of one worker: some lead from it to schedulers and registry, two to its gRPC and its K/V port.

    The worker says that it is at `host`, an address of this machine where only the wires listen: they have the ports
    there that it has at 127.0.0.1.
    """

    def __init__(self, host: str, schedulers: Sequence[Callable[[], str]], kv_store: Callable[[], str]) -> None:
        self._host = host
        self._to_schedulers = [Wire(host, address) for address in schedulers]
        self._to_kv_store = Wire(host, kv_store)
        self._in = {flag: Wire(host, self._at_home(flag)) for flag in ("--port", "--kv-port")}

    @property
    def wires(self) -> tuple[Wire, ...]:
        return (*self._to_schedulers, self._to_kv_store, *self._in.values())

    @property
    def options(self) -> tuple[str, ...]:
        """Flags of the worker."""
        ports = [part for flag, wire in self._in.items() for part in (flag, wire.address.rpartition(":")[2])]
        return (
            *("--advertise-host", self._host),
            *("--scheduler-address", ",".join(wire.address for wire in self._to_schedulers)),
            *("--kv-store-address", self._to_kv_store.address),
            *ports,
        )

    def _at_home(self, flag: str) -> Callable[[], str]:
        return lambda: f"127.0.0.1:{self._in[flag].address.rpartition(':')[2]}"
