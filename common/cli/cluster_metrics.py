"""What every service of a cluster has measured, asked of each and shown side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc.aio

from common.cli.table import render_table
from common.metrics import catalogue
from common.metrics.readings import Distribution, Reading
from common.rpc.channel import open_channel
from common.rpc.metrics import readings_from_proto
from sangam.v1 import metrics_pb2, metrics_pb2_grpc

TIMEOUT_S = 5.0

WATCHED = (
    catalogue.LEAKED_PAGES,
    catalogue.LEAKED_REQUESTS,
    catalogue.LEAKED_LEASES,
    catalogue.CONSERVATION_BROKEN,
    catalogue.REPLAY_DIVERGENCE,
)
"""What must read 0 while nothing runs; these head the table."""

_HEADER = ("service", "leaked pages", "leaked requests", "leaked leases", "broken books", "divergences")

ClusterReadings = Mapping[str, list[Reading] | None]
"""Readings by service name; None for one that did not answer."""


async def fetch_readings(address: str) -> list[Reading] | None:
    """What the service at `address` has measured; None when it does not answer."""
    async with open_channel(address) as channel:
        stub = metrics_pb2_grpc.MetricsServiceStub(channel)
        try:
            return readings_from_proto(await stub.GetMetrics(metrics_pb2.GetMetricsRequest(), timeout=TIMEOUT_S))
        except grpc.aio.AioRpcError:
            return None


async def fetch_all(addresses: Mapping[str, str]) -> ClusterReadings:
    """Ask every service at once; `addresses` are host:port by service name."""
    answers = await asyncio.gather(*(fetch_readings(address) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


def total(readings: Sequence[Reading], name: str) -> float:
    """Sum over the values of that counter or gauge; 0 when it has none."""
    return sum(value for found in readings if found.name == name and not isinstance(value := found.value, Distribution))


def metric_facts(cluster: ClusterReadings) -> dict[str, Any]:
    """The readings as plain values: a list for each service, null for one that does not answer."""
    return {
        service: None if readings is None else [_facts(reading) for reading in readings]
        for service, readings in cluster.items()
    }


def render_metrics(cluster: ClusterReadings) -> str:
    """A table of what must be 0, then everything else that was measured, service by service."""
    summary = render_table(_HEADER, [_summary_row(service, readings) for service, readings in cluster.items()])
    watched = {instrument.about.name for instrument in WATCHED}
    rows = [
        (service, f"{reading.name}{_labels(reading)}", _text(reading.value))
        for service, readings in cluster.items()
        for reading in readings or ()
        if reading.name not in watched
    ]
    return f"{summary}\n{render_table(('service', 'metric', 'value'), rows)}" if rows else summary


def _summary_row(service: str, readings: list[Reading] | None) -> tuple[str, ...]:
    if readings is None:
        return (service, *("no answer" for _ in WATCHED))
    return (service, *(f"{total(readings, instrument.about.name):g}" for instrument in WATCHED))


def _facts(reading: Reading) -> dict[str, Any]:
    match reading.value:
        case Distribution(count=count, sum=total_sum, bounds=bounds, bucket_counts=bucket_counts):
            value: Any = {"count": count, "sum": total_sum, "bounds": bounds, "bucket_counts": bucket_counts}
        case number:
            value = number
    return {"name": reading.name, "kind": reading.kind, "labels": dict(reading.labels), "value": value}


def _labels(reading: Reading) -> str:
    return "{" + ", ".join(f"{key}={value}" for key, value in reading.labels) + "}" if reading.labels else ""


def _text(value: float | Distribution) -> str:
    if isinstance(value, Distribution):
        return f"{value.count} values, mean {value.sum / value.count:.4g}" if value.count else "0 values"
    return f"{value:.6g}"
