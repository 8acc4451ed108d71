"""Reading the instruments of the test process."""

from __future__ import annotations

from common.metrics.readings import Distribution
from common.telemetry import metric_readings, setup_telemetry


def value_of(name: str, **labels: str) -> float:
    """A counter's or gauge's present value; 0 when it has none."""
    found = _found(name, **labels)
    assert not isinstance(found, Distribution)
    return 0 if found is None else found


def distribution_of(name: str, **labels: str) -> Distribution:
    """A histogram's present value; an empty one when it has none."""
    found = _found(name, **labels)
    assert found is None or isinstance(found, Distribution)
    return found or Distribution(count=0, sum=0.0, bounds=(), bucket_counts=())


def _found(name: str, **labels: str) -> float | Distribution | None:
    setup_telemetry("test", "")
    wanted = tuple(sorted(labels.items()))
    return next((r.value for r in metric_readings() if r.name == name and r.labels == wanted), None)
