"""The calls of a `RegistryCore` as values, so that they can be written down and made again."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.ids import BlockAttempt, WorkerLife
from common.core.registry import KvOutcome, Reconciliation, RegistryCore
from common.core.work import KvHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """`RegistryCore.publish`."""

    entries: tuple[KvHandle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """`RegistryCore.get`."""

    attempts: tuple[BlockAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """`RegistryCore.renew`; `lease_s` in seconds from the call."""

    owner: WorkerLife
    attempts: tuple[BlockAttempt, ...]
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """`RegistryCore.release`."""

    owner: WorkerLife
    attempts: tuple[BlockAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """`RegistryCore.reconcile`."""

    owner: WorkerLife
    held: tuple[BlockAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """`RegistryCore.fence`."""

    life: WorkerLife


RegistryCall = Publish | Get | Renew | Release | Reconcile | Fence
RegistryAnswer = KvOutcome | KvHandle | Reconciliation | int


def answer(core: RegistryCore, call: RegistryCall, now: float) -> list[RegistryAnswer]:
    """Make the call at time `now` (monotonic seconds); an answer that is no batch comes alone."""
    match call:
        case Publish():
            return [*core.publish(call.entries, now)]
        case Get():
            return [*core.get(call.attempts, now)]
        case Renew():
            return [*core.renew(call.owner, call.attempts, call.lease_s, now)]
        case Release():
            return [*core.release(call.owner, call.attempts, now)]
        case Reconcile():
            return [core.reconcile(call.owner, call.held, now)]
        case Fence():
            core.expire(now)
            return [core.fence(call.life)]
