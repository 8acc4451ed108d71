"""Counters, gauges and histograms over the OpenTelemetry API; what is exported is decided in `common.telemetry`.

An instrument is made once, in `common.metrics.catalogue`, and belongs to the process. Until telemetry is set up nobody
can read it. Counters and gauges keep their values themselves, for whoever reads them: where a step takes a millisecond,
a call of OpenTelemetry's own costs as much as the work that it counts. Names carry their units, so OpenTelemetry's own
unit stays empty: a Prometheus exporter would append it a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

_METER = metrics.get_meter("sangam")

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of histogram buckets of durations, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What an instrument is called and means: `labels` are the keys that tell its series apart."""

    name: str
    description: str
    labels: tuple[str, ...]


class Counter:
    """A total that only grows while the process lives. Any thread."""

    kind = "counter"

    def __init__(self, name: str, description: str, *, labels: Sequence[str] = ()) -> None:
        self.about = About(name=name, description=description, labels=tuple(labels))
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, ...], float] = {}
        _METER.create_observable_counter(name, callbacks=[self._observe], description=description)

    def add(self, amount: float = 1, **labels: str) -> None:
        """Grow by `amount`, 0 or more; 0 makes a series visible before anything has happened."""
        _check(self.about, labels)
        assert amount >= 0, f"{self.about.name} cannot shrink by {-amount}"
        series = tuple(labels.values())
        with self._lock:
            self._totals[series] = self._totals.get(series, 0) + amount

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            totals = list(self._totals.items())
        return [Observation(total, dict(zip(self.about.labels, series, strict=True))) for series, total in totals]


class Histogram:
    """A distribution of durations in seconds. Any thread."""

    kind = "histogram"

    def __init__(self, name: str, description: str, *, labels: Sequence[str] = ()) -> None:
        self.about = About(name=name, description=description, labels=tuple(labels))
        self._histogram = _METER.create_histogram(
            name, description=description, explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S
        )

    def record(self, value_s: float, **labels: str) -> None:
        """Add one value."""
        _check(self.about, labels)
        self._histogram.record(value_s, labels)


class Gauge:
    """A present value. What is shown replaces all that was shown before: a worker that left leaves no series behind.

    One thread shows, any may read.
    """

    kind = "gauge"

    def __init__(self, name: str, description: str, *, labels: Sequence[str] = ()) -> None:
        self.about = About(name=name, description=description, labels=tuple(labels))
        self._shown: Sequence[tuple[float, Mapping[str, str]]] = ()
        _METER.create_observable_gauge(name, callbacks=[self._observe], description=description)

    def show(self, value: float) -> None:
        """The value from now on."""
        _check(self.about, {})
        self._shown = ((value, {}),)

    def show_each(self, points: Iterable[tuple[float, Mapping[str, str]]]) -> None:
        """The values from now on, one for each set of labels."""
        shown = tuple((value, dict(labels)) for value, labels in points)
        for _, labels in shown:
            _check(self.about, labels)
        self._shown = shown

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, labels) for value, labels in self._shown]


Instrument = Counter | Gauge | Histogram


def _check(about: About, labels: Mapping[str, object]) -> None:
    assert tuple(labels) == about.labels, f"{about.name} has the labels {about.labels}, not {tuple(labels)}"
