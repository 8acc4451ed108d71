"""Show the cluster as its scheduler sees it: workers, pages, prefill load, queues; on request, what all measured."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from common.cli.cluster_metrics import fetch_all, metric_facts, render_metrics
from common.cli.leader_call import TIMEOUT_S, ask_leader
from common.cli.run_dir import find_scheduler, running_clusters
from common.cli.table import render_table
from common.config_values import is_address, parse_addresses
from common.core.ids import Role, ServingMode
from common.errors import ConfigError
from common.rpc.convert import role_from_proto, serving_mode_from_proto
from sangam.v1 import scheduler_pb2

OTHER_SERVICES = ("gateway", "kv_store")
"""Services that the scheduler does not know the addresses of."""

_HEADER = (
    *("worker", "role", "incarnation", "address", "pages free", "pages", "prefill tokens"),
    *("budget", "deficit", "decodes", "gap ms", "queued prefills", "state"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam status`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--metrics",
        action="store_true",
        help="ask every service what it has measured (docs/metrics.md), leaks first; fails when one does not answer",
    )
    for service in OTHER_SERVICES:
        parser.add_argument(
            f"--{service.replace('_', '-')}",
            default="",
            metavar="HOST:PORT",
            help=f"with --metrics: the {service} (default: that of the cluster you started with `sangam up`)",
        )
    add_address_argument(parser)


def add_address_argument(parser: argparse.ArgumentParser) -> None:
    """The flag that names a scheduler."""
    parser.add_argument(
        "--address",
        default=os.environ.get("SANGAM_SCHEDULER_ADDRESS", ""),
        metavar="HOST:PORT[,...]",
        help="the scheduler, or all of several (default: $SANGAM_SCHEDULER_ADDRESS, else those of your `sangam up`)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0. Raises NoCluster, or WireError when the scheduler cannot be asked."""
    address = find_scheduler(args.address)
    state = asyncio.run(fetch_state(address))
    document, text, complete = facts(state), render(state), True
    if args.metrics:
        named = {service: getattr(args, service) for service in OTHER_SERVICES}
        readings = asyncio.run(fetch_all(service_addresses(state, scheduler=address, named=named)))
        document["metrics"] = metric_facts(readings)
        text = f"{text}\n{render_metrics(readings)}"
        complete = None not in readings.values()
    print(json.dumps(document, indent=2) if args.json else text)
    return 0 if complete else 1


def service_addresses(
    state: scheduler_pb2.GetClusterStateResponse, *, scheduler: str, named: Mapping[str, str]
) -> dict[str, str]:
    """host:port of the cluster's services by name: workers as registered, the others as `named` ("": look it up).

    A service that is neither named nor found in the run folder of a cluster started here is left out. Raises
    ConfigError for an address that is none.
    """
    started_here = next((cluster for cluster in running_clusters() if cluster.scheduler == scheduler), None)
    schedulers = parse_addresses(scheduler)
    addresses = {"scheduler": scheduler}
    if len(schedulers) > 1:
        addresses = {f"scheduler-{index}": address for index, address in enumerate(schedulers)}
    for service, address in named.items():
        if address and not is_address(address):
            raise ConfigError(f"--{service.replace('_', '-')}: must be host:port, not {address!r}")
        addresses[service] = address or getattr(started_here, service, "")
    workers = {worker.life.worker_id: worker.address for worker in state.workers}
    return {name: address for name, address in {**addresses, **workers}.items() if address}


async def fetch_state(schedulers: str) -> scheduler_pb2.GetClusterStateResponse:
    """Ask the scheduler that leads among `schedulers` (host:port, of several with commas). Raises WireError."""
    request = scheduler_pb2.GetClusterStateRequest()
    return await ask_leader(schedulers, lambda stub: stub.GetClusterState(request, timeout=TIMEOUT_S))


def unfree_pages(worker: scheduler_pb2.WorkerState) -> int:
    """Pages in use, by the scheduler's ledger or by the worker's own report, whichever says more."""
    # A worker that has had no work yet has nothing to report.
    reported_free = worker.report.free_pages if worker.HasField("report") else worker.pages_total
    return worker.pages_total - min(worker.pages_free, reported_free)


def facts(state: scheduler_pb2.GetClusterStateResponse) -> dict[str, Any]:
    """The cluster as plain values; names carry their units as in the protos."""
    return {
        "mode": serving_mode_from_proto(state.mode).value,
        "overload_threshold_tokens": state.overload_threshold_tokens,
        "overload_threshold_adapts": state.overload_threshold_adapts,
        "queued_blocks": state.queued_blocks,
        "parked_blocks": state.parked_blocks,
        "replay_divergences": state.replay_divergences,
        "waiting_decode_blocks": state.waiting_decode_blocks,
        "running_requests": state.running_requests,
        "ended_requests": state.ended_requests,
        "workers": [_worker_facts(worker) for worker in state.workers],
    }


def _worker_facts(worker: scheduler_pb2.WorkerState) -> dict[str, Any]:
    report = worker.report
    return {
        "worker_id": worker.life.worker_id,
        "role": role_from_proto(worker.role).value,
        "incarnation": worker.life.incarnation,
        "address": worker.address,
        "draining": worker.draining,
        "pages_total": worker.pages_total,
        "pages_free": worker.pages_free,
        "outstanding_prefill_tokens": worker.outstanding_prefill_tokens,
        "active_decodes": worker.active_decodes,
        "token_budget_tokens": worker.token_budget_tokens,
        "reported": {
            "iteration": report.iteration,
            "deficit_tokens": report.deficit_tokens,
            "free_pages": report.free_pages,
            "active_decodes": report.active_decodes,
            "queued_prefills": report.queued_prefills,
            "queued_prefill_tokens": report.queued_prefill_tokens,
            "retained_blocks": report.retained_blocks,
            "token_budget_tokens": report.token_budget_tokens,
            "token_budget_adapts": report.token_budget_adapts,
            "decode_gap_s": report.decode_gap_s,
            "wanted_blocks": report.wanted_blocks,
            "wanted_prefill_tokens": report.wanted_prefill_tokens,
        }
        if worker.HasField("report")
        else None,
    }


def render(state: scheduler_pb2.GetClusterStateResponse) -> str:
    """The cluster as a table for a person."""
    queue = (
        f"{serving_mode_from_proto(state.mode).value} mode: {state.running_requests} requests running, "
        f"{state.queued_blocks} blocks queued for prefill, {state.waiting_decode_blocks} waiting for decode memory, "
        f"{state.ended_requests} requests ended{_threshold(state)}{_troubles(state)}"
    )
    if not state.workers:
        return f"{queue}\n  no worker is registered"
    return f"{queue}\n{render_table(_HEADER, [_row(_worker_facts(worker)) for worker in state.workers])}"


def _row(worker: dict[str, Any]) -> tuple[str, ...]:
    reported = worker["reported"] or {}
    return (
        *(worker["worker_id"], worker["role"], str(worker["incarnation"]), worker["address"]),
        *(str(worker["pages_free"]), str(worker["pages_total"]), str(worker["outstanding_prefill_tokens"])),
        *(_budget(worker), str(reported.get("deficit_tokens", "-")), str(worker["active_decodes"])),
        f"{reported['decode_gap_s'] * 1e3:.0f}" if reported.get("decode_gap_s") else "-",
        str(reported.get("queued_prefills", "-")),
        "draining" if worker["draining"] else "serving",
    )


def _threshold(state: scheduler_pb2.GetClusterStateResponse) -> str:
    """The overload threshold in force, where it means something."""
    if serving_mode_from_proto(state.mode) is not ServingMode.HYBRID:
        return ""
    return f"; overload threshold {state.overload_threshold_tokens}{' (auto)' * state.overload_threshold_adapts}"


def _troubles(state: scheduler_pb2.GetClusterStateResponse) -> str:
    """What should be 0, where it is not."""
    parked = f"; {state.parked_blocks} of the queued blocks fit no live worker" * bool(state.parked_blocks)
    return parked + f"; {state.replay_divergences} tokens differed when repeated" * bool(state.replay_divergences)


def _budget(worker: dict[str, Any]) -> str:
    """The token budget in force, and how many blocks an adaptive one wants; a prefill worker has none."""
    if worker["role"] != Role.DECODE.value:
        return "-"
    reported = worker["reported"] or {}
    tokens = reported.get("token_budget_tokens") or worker["token_budget_tokens"]
    wanted = f", {reported.get('wanted_blocks')} blocks" if reported.get("wanted_blocks") else ""
    return f"{tokens}{' auto' * reported.get('token_budget_adapts', False)}{wanted}"
