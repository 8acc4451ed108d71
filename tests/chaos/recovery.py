"""How long clients waited after faults: from a fault to the next committed token of each request that it touched."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.faults import Fault, FaultKind
from tests.chaos.watched_request import Moment, WatchedRequest

_TOUCH_ALL = frozenset({FaultKind.GATEWAY, FaultKind.REDIS, FaultKind.SCHEDULER, FaultKind.SCHEDULER_PAUSE})
_HOLD_UP = frozenset({FaultKind.PAUSE, FaultKind.CUT})
_GRAVITY = {kind: place for place, kind in enumerate(FaultKind)}


def recoveries(requests: Sequence[WatchedRequest], faults: Sequence[Fault]) -> dict[FaultKind, list[float]]:
    """Seconds by kind, ascending: one for each wait for a token in which a touching fault fell.

    What befalls the scheduler, the gateway or Redis touches every running request, a pause or a cut those whose open
    block was at that worker, and all others those whose open block had to be tried again. A wait that several faults
    explain, among them pauses and cuts that had begun before, counts for the gravest, from that one's beginning on, or
    from its own where that came later.
    """
    found: dict[FaultKind, list[float]] = {kind: [] for kind in FaultKind}
    for request in requests:
        for before, after in request.gaps():
            fault = _explanation(request, before, after, faults)
            if fault is not None:
                found[fault.kind].append(after.at_s - max(before.at_s, fault.begun_s))
    return {kind: sorted(waits) for kind, waits in found.items()}


def _explanation(request: WatchedRequest, before: Moment, after: Moment, faults: Sequence[Fault]) -> Fault | None:
    touching = [
        fault
        for fault in faults
        if (before.at_s < fault.begun_s < after.at_s or _lasts_into(fault, before.at_s))
        and _touches(fault, request, before.tokens)
    ]
    # One that lasts explains a wait only where another one fell into it.
    if all(fault.begun_s <= before.at_s for fault in touching):
        return None
    return min(touching, key=lambda fault: (_GRAVITY[fault.kind], fault.begun_s))


def _lasts_into(fault: Fault, at_s: float) -> bool:
    """Whether it is a pause or cut that had begun: a block that is sent there meanwhile waits for its end."""
    return fault.kind in _HOLD_UP and fault.begun_s <= at_s < fault.ended_s


def _touches(fault: Fault, request: WatchedRequest, tokens: int) -> bool:
    if fault.kind in _TOUCH_ALL or request.block_was_retried(tokens):
        return True
    return fault.kind in _HOLD_UP and request.block_ran_on(tokens, fault.target)
