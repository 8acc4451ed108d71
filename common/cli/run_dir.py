"""Folders of running clusters: where a cluster's logs lie, and how `sangam status` finds its scheduler."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from common.cli.cache_dir import cache_dir, make_cache_folder
from common.config_values import parse_addresses
from common.errors import SangamError

CLUSTER_FILE = "cluster.json"
_LOOPBACK = frozenset({"127.0.0.1", "[::1]", "localhost"})


class NoCluster(SangamError):
    """No running cluster, or more than one, where exactly one is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """What a cluster wrote down about itself: its supervisor's pid, host:port of three services, its mode."""

    pid: int
    gateway: str
    scheduler: str
    mode: str
    kv_store: str = ""

    def write(self, run_dir: Path) -> None:
        """Leave the facts in the run folder."""
        (run_dir / CLUSTER_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def runs_dir() -> Path:
    """The folder that holds a folder per run."""
    return cache_dir() / "run"


def new_run_dir() -> Path:
    """A fresh folder for this process' run; folders of runs that are over are removed first."""
    _forget_old_runs()
    run_dir = runs_dir() / str(os.getpid())
    _remove(run_dir)
    make_cache_folder(run_dir)
    return run_dir


@contextmanager
def findable(run_dir: Path) -> Iterator[None]:
    """While the block runs, this process' cluster is found as yours although its folder lies elsewhere, by a link.

    Where no link can be made it is found by `--run-dir` and `--address` only.
    """
    link = runs_dir() / str(os.getpid())
    if run_dir.resolve() == link.resolve():
        yield
        return
    _forget_old_runs()
    _remove(link)
    try:
        runs_dir().mkdir(parents=True, exist_ok=True)
        link.symlink_to(run_dir.resolve(), target_is_directory=True)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        link.unlink(missing_ok=True)


def _forget_old_runs() -> None:
    """Remove the folders of runs that are over; of those that lie elsewhere, the links."""
    for old in runs_dir().glob("*"):
        if old.name.isdecimal() and not is_running(int(old.name)):
            _remove(old)


def _remove(run_dir: Path) -> None:
    if run_dir.is_symlink():
        run_dir.unlink()
    else:
        shutil.rmtree(run_dir, ignore_errors=True)


def read_cluster_file(run_dir: Path) -> RunningCluster | None:
    """The cluster that runs in this folder, or None."""
    try:
        cluster = RunningCluster(**json.loads((run_dir / CLUSTER_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return cluster if is_running(cluster.pid) else None


def running_clusters() -> list[RunningCluster]:
    """Every cluster of this user that runs here."""
    return [cluster for run_dir in sorted(runs_dir().glob("*")) if (cluster := read_cluster_file(run_dir))]


def is_gateway_of_mine(address: str) -> bool:
    """Whether host:port is where the gateway of a cluster of this user belongs, be it there just now or not."""
    host, _, port = address.rpartition(":")
    gateways = {cluster.gateway for cluster in running_clusters()}
    return address in gateways or (host in _LOOPBACK and port in {gateway.rpartition(":")[2] for gateway in gateways})


def find_run_dir(given: Path | None) -> Path:
    """Folder of a running cluster: `given`, else that of this user's one cluster. Raises NoCluster."""
    found = [given] if given is not None else sorted(runs_dir().glob("*"))
    running = [run_dir for run_dir in found if read_cluster_file(run_dir) is not None]
    if not running:
        where = "is running here" if given is None else f"is running in {given}"
        raise NoCluster(f"no cluster of yours {where}; start one with `sangam up`")
    if len(running) > 1:
        choices = ", ".join(str(run_dir) for run_dir in running)
        raise NoCluster(f"several clusters are running; choose one with --run-dir: {choices}")
    return running[0]


def find_scheduler(address: str) -> str:
    """host:port of the scheduler to talk to, of several with commas: `address`, else that of this user's one cluster.

    Raises NoCluster when there is none, or no telling which; ConfigError when `address` is none.
    """
    if address:
        return ",".join(parse_addresses(address, "--address"))
    found = running_clusters()
    if not found:
        raise NoCluster("no cluster of yours is running here; start one with `sangam up`, or name its --address")
    if len(found) > 1:
        choices = ", ".join(f"{cluster.scheduler} (gateway {cluster.gateway})" for cluster in found)
        raise NoCluster(f"several clusters are running; choose one with --address: {choices}")
    return found[0].scheduler


def is_running(pid: int) -> bool:
    """Whether a process has that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
