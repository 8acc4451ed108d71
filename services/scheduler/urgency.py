"""Which effects go first: a device waits for its call, nobody for what its client is told meanwhile."""

from __future__ import annotations

from common.core.effects import (
    CallDecode,
    CallPrefill,
    FailRequest,
    FinishRequest,
    PublishBlock,
    PublishStep,
    SchedulerEffect,
)
from common.core.work import RemoteKv

CALL_LEAD_S = 0.001
"""Lead of a call over what can wait: of every message that leaves with it, its worker would have to wait for the
processor too."""

_TOLD = PublishStep | PublishBlock | FinishRequest | FailRequest
"""Effects for a request's client; their order among each other counts, not that to the others."""


def by_urgency(effects: list[SchedulerEffect]) -> tuple[list[SchedulerEffect], list[SchedulerEffect]]:
    """What is to be carried out at once, and what may wait for `CALL_LEAD_S`; in order, each.

    Calls go before what clients are told. A client whose request goes on, with a call that begins now, can wait, and
    so can the call that reads early what another one's prefill has yet to compute.
    """
    called = {
        effect.work.attempt.request_id
        for effect in effects
        if isinstance(effect, CallPrefill | CallDecode) and not _reads_early(effect)
    }
    calls: list[SchedulerEffect] = []
    told: list[SchedulerEffect] = []
    later: list[SchedulerEffect] = []
    for effect in effects:
        if isinstance(effect, _TOLD):
            (later if effect.request_id in called else told).append(effect)
        else:
            (later if _reads_early(effect) else calls).append(effect)
    return calls + told, later


def _reads_early(effect: SchedulerEffect) -> bool:
    return isinstance(effect, CallDecode) and isinstance(effect.source, RemoteKv) and effect.source.early
