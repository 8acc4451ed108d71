"""Orders to a running `sangam up`: restart these services, one after the other.

An order is a file in the run folder, SIGUSR1 says that there is one, and what becomes of it is told in a log beside it,
line by line; the last line is DONE, or begins with FAILED.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from common.cli.cluster import Cluster
from common.cli.run_dir import NoCluster, read_cluster_file
from common.cli.supervisor import ServiceFailed

DONE = "done"
FAILED = "failed: "
SIGNAL = signal.SIGUSR1
TAKES_ORDERS_FILE = "takes-orders"
"""Stands in the run folder while the cluster obeys: the signal would end one that does not."""


def leave_order(run_dir: Path, services: Sequence[str]) -> Path:
    """Order the cluster that runs in `run_dir` to restart `services` (none: all). Returns the log to read.

    Raises NoCluster when none runs there any more, or one that takes no orders.
    """
    cluster = read_cluster_file(run_dir)
    if cluster is None:
        raise NoCluster(f"the cluster in {run_dir} has ended meanwhile")
    if not (run_dir / TAKES_ORDERS_FILE).exists():
        raise NoCluster(f"the cluster in {run_dir} takes no orders: `sangam up` has not started it, or not yet")
    order = run_dir / f"restart-{secrets.token_hex(4)}.json"
    draft = order.with_suffix(".draft")
    draft.write_text(json.dumps({"services": list(services)}), encoding="utf-8")
    draft.replace(order)
    log = order.with_suffix(".log")
    log.touch()
    os.kill(cluster.pid, SIGNAL)
    return log


async def obey_restart_orders(cluster: Cluster, *, say: Callable[[str], None]) -> None:
    """Carry out orders as they come, until cancelled; a signal without an order means all services."""
    ordered = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(SIGNAL, ordered.set)
    run_dir = cluster.config.run_dir
    (run_dir / TAKES_ORDERS_FILE).touch()
    try:
        while True:
            await ordered.wait()
            ordered.clear()
            await _obey(cluster, say)
    finally:
        (run_dir / TAKES_ORDERS_FILE).unlink(missing_ok=True)


async def _obey(cluster: Cluster, say: Callable[[str], None]) -> None:
    """Carry out what is ordered now."""
    run_dir = cluster.config.run_dir
    orders = sorted(run_dir.glob("restart-*.json"))
    for order in orders:
        services = tuple(json.loads(order.read_text(encoding="utf-8"))["services"])
        order.unlink()
        await _restart(cluster, services, order.with_suffix(".log"), say)
    if not orders:
        await _restart(cluster, (), run_dir / "restart.log", say)


async def _restart(cluster: Cluster, services: Sequence[str], log: Path, say: Callable[[str], None]) -> None:
    def tell(line: str) -> None:
        with log.open("a", encoding="utf-8") as story:
            story.write(line + "\n")

    unknown = [name for name in services if name not in cluster.renewable]
    if unknown:
        tell(f"{FAILED}no service {', '.join(unknown)} here (there are {', '.join(cluster.renewable)})")
        return
    try:
        async for name in cluster.renew(services):
            say(f"{name} has been restarted in order")
            tell(f"{name} is back")
    except ServiceFailed as error:
        say(str(error))
        tell(FAILED + " ".join(str(error).split()))
    else:
        tell(DONE)
