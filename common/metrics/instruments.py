"""Counters, gauges and histograms over the OpenTelemetry API; what is exported is decided in `common.telemetry`.

An instrument is made once, in `common.metrics.catalogue`, and belongs to the process. Until telemetry is set up it
measures nothing. Names carry their units, so OpenTelemetry's own unit stays empty: a Prometheus exporter would append
it a second time.
"""

from __future__ import annotations

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
        self._counter = _METER.create_counter(name, description=description)

    def add(self, amount: float = 1, **labels: str) -> None:
        """Grow by `amount`, 0 or more; 0 makes a series visible before anything has happened."""
        _check(self.about, labels)
        self._counter.add(amount, labels)


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
        self._shown: tuple[Observation, ...] = ()
        _METER.create_observable_gauge(name, callbacks=[self._observe], description=description)

    def show(self, value: float) -> None:
        """The value from now on."""
        self.show_each([(value, {})])

    def show_each(self, points: Iterable[tuple[float, Mapping[str, str]]]) -> None:
        """The values from now on, one for each set of labels."""
        shown = tuple(Observation(value, dict(labels)) for value, labels in points)
        for point in shown:
            _check(self.about, point.attributes or {})
        self._shown = shown

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._shown


Instrument = Counter | Gauge | Histogram


def _check(about: About, labels: Mapping[str, object]) -> None:
    assert tuple(labels) == about.labels, f"{about.name} has the labels {about.labels}, not {tuple(labels)}"
