"""Start a cluster on this machine and keep it running until Ctrl-C; a service that dies is restarted."""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import socket
import sys
from pathlib import Path

from common.checkpoint import check_checkpoint
from common.checkpoint_values import check_values
from common.cli.arguments import folder, make_folder
from common.cli.cluster import Cluster
from common.cli.cluster_config import ClusterConfig
from common.cli.default_model import default_model_dir
from common.cli.interrupt import Interrupted, run_interruptible
from common.cli.policy_flags import (
    add_policy_arguments,
    gateway_options,
    scheduler_options,
    tokens_or_auto,
    worker_options,
)
from common.cli.progress import Progress
from common.cli.redis_process import redis_installed
from common.cli.restart_orders import obey_restart_orders
from common.cli.run_dir import findable, new_run_dir
from common.cli.supervisor import ServiceFailed
from common.cli.table import render_table
from common.config_values import AUTO, DTYPE_CHOICES, KV_TRANSPORT_CHOICES, LOG_LEVEL_CHOICES, check_registry
from common.core.defaults import DEFAULT_DRAIN_S, DEFAULT_OVERLOAD_THRESHOLD_TOKENS, DEFAULT_TOKEN_BUDGET_TOKENS
from common.core.ids import ServingMode
from common.errors import ConfigError
from common.text_codec import load_text_codec
from common.transport.ucx_runtime import ucx_installed

PROG = "sangam up"
DEFAULT_GRPC_PORT = 50051


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam up`."""
    add_cluster_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="interface the gateway listens on (default %(default)s)")
    parser.add_argument(
        "--grpc-port",
        type=_whole,
        default=DEFAULT_GRPC_PORT,
        metavar="P",
        help="the gateway's port (default %(default)s)",
    )


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every command shares which starts a cluster."""
    parser.add_argument(
        "--model", type=folder, metavar="DIR", help="checkpoint folder (default: sangam-tiny, which is part of Sangam)"
    )
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in ServingMode],
        default=ServingMode.HYBRID.value,
        help="how prefills and decodes share the workers (default hybrid)",
    )
    parser.add_argument(
        "--schedulers", type=_whole, default=1, metavar="S", help="one leads, the others stand by (default 1)"
    )
    parser.add_argument(
        "--registry",
        default="memory",
        metavar="WHERE",
        help="where the registry is kept: memory, or redis://host:port/db (default memory; with several schedulers, "
        "which agree there on their leader, a redis-server of this cluster's own)",
    )
    parser.add_argument("--prefill-workers", type=_whole, metavar="N", help="prefill workers (default 1; colocated: 0)")
    parser.add_argument("--decode-workers", type=_whole, default=1, metavar="M", help="decode workers (default 1)")
    parser.add_argument(
        "--token-budget",
        type=tokens_or_auto,
        default=DEFAULT_TOKEN_BUDGET_TOKENS,
        metavar="TAU",
        help="query tokens one worker iteration may spend, or auto (default %(default)s)",
    )
    parser.add_argument(
        "--overload-threshold",
        type=tokens_or_auto,
        default=DEFAULT_OVERLOAD_THRESHOLD_TOKENS,
        metavar="THETA",
        help="outstanding prefill tokens at which a worker counts as overloaded, or auto (default %(default)s)",
    )
    _add_worker_arguments(parser)
    parser.add_argument(
        "--drain-s",
        type=_seconds,
        default=DEFAULT_DRAIN_S,
        metavar="S",
        help="how long work in flight may take to end when a service is told to stop, in seconds (default %(default)g)",
    )
    parser.add_argument("--run-dir", type=folder, metavar="DIR", help="folder for logs (default: in the cache folder)")
    parser.add_argument(
        "--story-dir",
        type=folder,
        metavar="DIR",
        help="folder that gets the story of each core, event by event, for `sangam replay` (default: none is written)",
    )
    parser.add_argument("--log-level", default="info", choices=LOG_LEVEL_CHOICES)
    add_policy_arguments(parser)


def _add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="D[,D...]",
        help="torch devices that workers get in turn, such as cuda:0,cuda:1 (default cpu)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=DTYPE_CHOICES,
        help="type of weights and K/V (default auto: float32 on cpu, bfloat16 on cuda)",
    )
    parser.add_argument(
        "--kv-pages", type=_whole, default=0, metavar="N", help="KV pages per worker (default: what fits)"
    )
    parser.add_argument(
        "--kv-transport",
        default=AUTO,
        choices=KV_TRANSPORT_CHOICES,
        help="what moves K/V between workers; auto: readers take it out of memory themselves (default %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0 after Ctrl-C, 1 when a service failed. Raises ConfigError or CheckpointError."""
    config = cluster_config(args, host=args.host, grpc_port=args.grpc_port)
    check_port_free(args.host, args.grpc_port)
    try:
        run_interruptible(_serve(config))
    except Interrupted:
        say("stopped")
        return 0
    except ServiceFailed as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 1
    return 1


def cluster_config(args: argparse.Namespace, *, host: str, grpc_port: int) -> ClusterConfig:
    """What the flags ask for, checked before any process starts. Raises ConfigError or CheckpointError."""
    mode = ServingMode(args.mode)
    prefill_workers = args.prefill_workers
    if prefill_workers is None:
        prefill_workers = 0 if mode is ServingMode.COLOCATED else 1
    _check_counts(args, mode, prefill_workers)
    _check_devices(args.device)
    model_dir: Path = (args.model or default_model_dir()).absolute()
    _check_model(model_dir)
    load_text_codec(model_dir)
    if args.story_dir is not None:
        make_folder(args.story_dir, "--story-dir")
    return ClusterConfig(
        model_dir=model_dir,
        run_dir=(args.run_dir or new_run_dir()).absolute(),
        mode=mode,
        prefill_workers=prefill_workers,
        decode_workers=args.decode_workers,
        schedulers=args.schedulers,
        registry=_registry(args),
        host=host,
        grpc_port=grpc_port,
        token_budget_tokens=args.token_budget,
        overload_threshold_tokens=args.overload_threshold,
        scheduler_options=scheduler_options(args),
        gateway_options=gateway_options(args),
        worker_options=worker_options(args),
        device=args.device,
        dtype=args.dtype,
        kv_pages=args.kv_pages,
        kv_transport=_installed_transport(args.kv_transport),
        drain_s=args.drain_s,
        log_level=args.log_level,
        story_dir=None if args.story_dir is None else args.story_dir.absolute(),
    )


def _check_model(model_dir: Path) -> None:
    """Raises CheckpointError; a big model takes as long as its files take to be read."""
    index = check_checkpoint(model_dir)
    with Progress(len(index.tensors), "tensors of the model checked") as progress:
        check_values(index, on_tensor=progress.show)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, not {text!r}")
    return value


def _registry(args: argparse.Namespace) -> str:
    """The registry's place as `ClusterConfig` has it; raises ConfigError for one that cannot be had."""
    check_registry(args.registry, "--registry")
    if args.schedulers == 1 or args.registry != "memory":
        return str(args.registry)
    if not redis_installed():
        raise ConfigError(
            f"--schedulers {args.schedulers}: they agree on their leader in a Redis; install redis-server, or name one "
            "with --registry redis://host:port/db"
        )
    return ""


def _installed_transport(name: str) -> str:
    """`name`, when this installation has what it needs; raises ConfigError otherwise."""
    if name == "ucx" and not ucx_installed():
        raise ConfigError("--kv-transport: ucx needs the extra: pip install 'sangam[ucx]'")
    return name


def _check_counts(args: argparse.Namespace, mode: ServingMode, prefill_workers: int) -> None:
    minimums = {"schedulers": 1, "decode_workers": 1, "token_budget": 1, "overload_threshold": 1, "kv_pages": 0}
    for name, minimum in minimums.items():
        value = getattr(args, name)
        if value != AUTO and value < minimum:
            raise ConfigError(f"--{name.replace('_', '-')}: must be {minimum} or more, not {value}")
    least = 1 if mode is ServingMode.DISAGGREGATED else 0
    most = 0 if mode is ServingMode.COLOCATED else None
    if prefill_workers < least or (most is not None and prefill_workers > most):
        allowed = "0" if most == 0 else f"{least} or more"
        raise ConfigError(f"--prefill-workers: must be {allowed} in {mode.value} mode, not {prefill_workers}")


def _check_devices(names: str) -> None:
    """Whether each is there, only a worker can tell: it takes torch."""
    if not all(re.fullmatch(r"(cpu|cuda)(:\d+)?", name) for name in names.split(",")):
        raise ConfigError(
            f"--device: must be cpu, cuda or cuda:N, or several of them with commas between, not {names!r}"
        )


def check_port_free(host: str, port: int) -> None:
    """Raise ConfigError when nothing can listen there (0: any free port is fine)."""
    if not 0 <= port < 65536:
        raise ConfigError(f"--grpc-port: must be within 0..65535, not {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--host {host} --grpc-port {port}: cannot listen there ({reason}); try another") from None


def say(line: str) -> None:
    """A line of progress for a person."""
    print(f"{PROG}: {line}", file=sys.stderr, flush=True)


async def _serve(config: ClusterConfig) -> None:
    with findable(config.run_dir):
        async with Cluster(config, say=say) as cluster:
            print(banner(cluster), flush=True)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(obey_restart_orders(cluster, say=say))
                    await cluster.watch()
            except asyncio.CancelledError:
                say(f"stopping; running requests get {config.drain_s:g} s (Ctrl-C again ends them now)")
                raise


def banner(cluster: Cluster) -> str:
    """Where everything is, and how to call it."""
    config, pids = cluster.config, cluster.processes
    rows = [(name, address, str(pids.get(name, "-"))) for name, address in cluster.addresses.items()]
    port = cluster.gateway_address.rpartition(":")[2]
    target = "" if port == str(DEFAULT_GRPC_PORT) else f" --address {cluster.gateway_address}"
    return "\n".join(
        [
            f"{config.model_dir.name} is served in {config.mode.value} mode",
            "",
            render_table(("service", "address", "pid"), rows),
            "",
            f'  try    sangam generate --prompt "Convert 5 days to hours."{target}',
            f"  state  sangam status --address {cluster.scheduler_address}",
            f"  logs   {config.run_dir}",
            "  stop   Ctrl-C",
        ]
    )
