"""What two ways to run the same request took, in turns, and how a table shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from common.bench.percentile import percentile

ALLOWED_P50_S = 0.015
"""Most that the services should add at the median on an idle machine (the project's own figure)."""

COLUMNS = (
    *("local p50", "local p90", "services p50", "services p90"),
    *("added p50", "added p90", f"p50 within {1000 * ALLOWED_P50_S:.0f} ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds per request, paired: entry i of both lists is the same request, one right after the other."""

    local_s: list[float] = field(default_factory=list)
    services_s: list[float] = field(default_factory=list)

    @property
    def added_s(self) -> list[float]:
        """What the services added to each request."""
        return [services - local for local, services in zip(self.local_s, self.services_s, strict=True)]

    @classmethod
    def of_all(cls, rows: Iterable[Times]) -> Times:
        """The pairs of all `rows`."""
        together = cls()
        for row in rows:
            together.local_s.extend(row.local_s)
            together.services_s.extend(row.services_s)
        return together

    def add(self, *, local_s: float, services_s: float) -> None:
        """One more pair."""
        self.local_s.append(local_s)
        self.services_s.append(services_s)

    def cells(self) -> tuple[str, ...]:
        """The row's cells under `COLUMNS`, in milliseconds."""
        columns = (self.local_s, self.services_s, self.added_s)
        within = percentile(self.added_s, 0.5) <= ALLOWED_P50_S
        cells = (f"{1000 * percentile(values, share):.1f}" for values in columns for share in (0.5, 0.9))
        return (*cells, "yes" if within else "no")
