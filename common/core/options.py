"""Closed choices of the scheduler: the order of its queue, and when a prefill is bound to a worker."""

from __future__ import annotations

import enum


class QueueOrder(enum.Enum):
    """ARRIVAL: by first submission, so that older requests' next blocks outrank newcomers. FEWEST_REMAINING_BLOCKS:
    by blocks left in the request, then by arrival; the shortest rest goes first.
    """

    ARRIVAL = "arrival"
    FEWEST_REMAINING_BLOCKS = "fewest_remaining_blocks"


class Dispatch(enum.Enum):
    """When a prefill is bound to a worker with a fixed budget; one that adapts it says itself how much it wants.

    EAGER: as soon as one has room (the paper's). LATE: only when one would admit it within `dispatch_ahead` iterations,
    so that a slow or dead worker strands little.
    """

    EAGER = "eager"
    LATE = "late"
