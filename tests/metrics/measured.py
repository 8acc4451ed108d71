"""Reading the instruments of the test process, which its tests share: what counts is by how much a value grows."""

from __future__ import annotations

from common.metrics.readings import Distribution
from common.telemetry import metric_readings, setup_telemetry

NOTHING = Distribution(count=0, sum=0.0, bounds=(), bucket_counts=())


def value_of(name: str, **labels: str) -> float:
    """A counter's or gauge's present value; 0 when it has none."""
    found = _found(name, **labels)
    assert not isinstance(found, Distribution)
    return 0 if found is None else found


def distribution_of(name: str, **labels: str) -> Distribution:
    """A histogram's present value; an empty one when it has none."""
    found = _found(name, **labels)
    assert found is None or isinstance(found, Distribution)
    return found or NOTHING


class Growth:
    """How counters and the counts of histograms have grown since this object was made."""

    def __init__(self) -> None:
        setup_telemetry("test", "")
        self._before = _totals()

    def of(self, name: str, **labels: str) -> float:
        """Growth of that series."""
        key = (name, tuple(sorted(labels.items())))
        return _totals().get(key, 0) - self._before.get(key, 0)


def _totals() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (reading.name, reading.labels): value.count if isinstance(value := reading.value, Distribution) else value
        for reading in metric_readings()
        if reading.kind != "gauge"
    }


def _found(name: str, **labels: str) -> float | Distribution | None:
    setup_telemetry("test", "")
    wanted = tuple(sorted(labels.items()))
    return next((r.value for r in metric_readings() if r.name == name and r.labels == wanted), None)
