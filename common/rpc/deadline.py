"""Deadlines travel by hand: every hop passes on what is left, less a margin for its own answer."""

from __future__ import annotations

from typing import Protocol

DEFAULT_MARGIN_S = 0.05
_NO_DEADLINE_S = 1e9


class Timed(Protocol):
    """What is needed of a `grpc.aio.ServicerContext`."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline."""
        ...


def remaining_s(context: Timed) -> float | None:
    """Seconds until the caller's deadline (0 when it has passed); None when the caller set none."""
    left_s = context.time_remaining()
    # Without a deadline gRPC answers None or, depending on its version, centuries.
    if left_s is None or left_s > _NO_DEADLINE_S:
        return None
    return max(0.0, left_s)


def child_timeout_s(context: Timed, *, margin_s: float = DEFAULT_MARGIN_S) -> float | None:
    """Timeout for a call made on behalf of `context`'s caller: what is left less `margin_s`, at least 0."""
    left_s = remaining_s(context)
    return None if left_s is None else max(0.0, left_s - margin_s)
