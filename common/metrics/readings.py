"""What the instruments of this process have measured so far, without any collector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.sdk.metrics.export import (
    Gauge,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricsData,
    NumberDataPoint,
)

from common.metrics.catalogue import instruments


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Values of a histogram: `bucket_counts` has one entry more than `bounds`, for what is above the last."""

    count: int
    sum: float
    bounds: tuple[float, ...]
    bucket_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value of one instrument. `kind` is "counter", "gauge" or "histogram", whose value is a `Distribution`."""

    name: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    value: float | Distribution


class MetricReader:
    """Reads the instruments of the process. `sdk_reader` is what the telemetry's meter provider is given."""

    def __init__(self) -> None:
        self.sdk_reader = InMemoryMetricReader()

    def readings(self) -> list[Reading]:
        """Values by name, then labels; instruments that measured nothing yet are absent."""
        data = self.sdk_reader.get_metrics_data()
        return sorted(_readings(data), key=lambda reading: (reading.name, reading.labels)) if data else []


def _readings(data: MetricsData) -> Iterator[Reading]:
    known = instruments()
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name in known:
                    yield from _of_metric(metric)


def _of_metric(metric: Metric) -> Iterator[Reading]:
    number_kind = "gauge" if isinstance(metric.data, Gauge) else "counter"
    for point in metric.data.data_points:
        labels = tuple((key, str(value)) for key, value in sorted((point.attributes or {}).items()))
        if isinstance(point, NumberDataPoint):
            yield Reading(name=metric.name, kind=number_kind, labels=labels, value=point.value)
        elif isinstance(point, HistogramDataPoint):
            value = Distribution(
                count=point.count,
                sum=point.sum,
                bounds=tuple(point.explicit_bounds),
                bucket_counts=tuple(point.bucket_counts),
            )
            yield Reading(name=metric.name, kind="histogram", labels=labels, value=value)
