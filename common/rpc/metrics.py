"""MetricsService: what a process has measured, for whoever asks. `RpcServer` adds it to every service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio

from common.metrics.readings import Distribution, Reading
from common.telemetry import metric_readings
from sangam.v1 import metrics_pb2, metrics_pb2_grpc

SERVICE_NAME = "sangam.v1.MetricsService"

Context = grpc.aio.ServicerContext[Any, Any]


class MetricsServicer(metrics_pb2_grpc.MetricsServiceServicer):
    """Answers with the instruments of this process."""

    async def GetMetrics(
        self, request: metrics_pb2.GetMetricsRequest, context: Context
    ) -> metrics_pb2.GetMetricsResponse:
        """Every value so far."""
        return readings_to_proto(metric_readings())


def readings_to_proto(readings: Sequence[Reading]) -> metrics_pb2.GetMetricsResponse:
    """The message of these readings."""
    return metrics_pb2.GetMetricsResponse(points=[_point(reading) for reading in readings])


def readings_from_proto(message: metrics_pb2.GetMetricsResponse) -> list[Reading]:
    """The readings, in the message's order; points of a kind that this side does not know are passed over."""
    readings: list[Reading] = []
    for point in message.points:
        kind = point.WhichOneof("value")
        if kind is not None:
            labels = tuple(sorted(point.labels.items()))
            readings.append(Reading(name=point.name, kind=kind, labels=labels, value=_value(point)))
    return readings


def _point(reading: Reading) -> metrics_pb2.MetricPoint:
    point = metrics_pb2.MetricPoint(name=reading.name, labels=dict(reading.labels))
    match reading.value:
        case Distribution(count=count, sum=total, bounds=bounds, bucket_counts=bucket_counts):
            histogram = metrics_pb2.MetricHistogram(count=count, sum=total, bounds=bounds, bucket_counts=bucket_counts)
            point.histogram.CopyFrom(histogram)
        case number if reading.kind == "counter":
            point.counter = number
        case number:
            point.gauge = number
    return point


def _value(point: metrics_pb2.MetricPoint) -> float | Distribution:
    if not point.HasField("histogram"):
        return point.counter if point.HasField("counter") else point.gauge
    histogram = point.histogram
    return Distribution(
        count=histogram.count,
        sum=histogram.sum,
        bounds=tuple(histogram.bounds),
        bucket_counts=tuple(histogram.bucket_counts),
    )
