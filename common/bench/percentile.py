"""Percentiles that are values which were seen."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1, in thousandths) of the values do not exceed: nearest rank.

    nan when there are none.
    """
    if not values:
        return math.nan
    return sorted(values)[max(0, -(-round(share * 1000) * len(values) // 1000) - 1)]
