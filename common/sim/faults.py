"""What goes wrong, and when: drawn once, from the seed, before the run begins."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.core.ids import WorkerId
from common.errors import ConfigError
from common.sim.draws import Draws

MAX_FAULTS = 100_000
SPEC_FORM = "crash=N, hang=N, slow=N, duplicate=SHARE, reorder=SHARE, joined by commas"


class FaultKind(enum.Enum):
    """CRASH: the process dies and another life starts later. HANG: it stops for a while. SLOW: its links are slow."""

    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one worker: from `at_s`, for `lasts_s` seconds."""

    kind: FaultKind
    worker_id: WorkerId
    at_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """How many faults of each kind, and the shares of messages that arrive twice or late.

    A crashed worker is back after `restart_s`; a hang lasts up to `hang_s` (longer than the heartbeat timeout or not).
    """

    crashes: int = 0
    hangs: int = 0
    slow_links: int = 0
    duplicate_rate: float = 0.0
    reorder_rate: float = 0.0
    restart_s: float = 5.0
    hang_s: float = 6.0
    slow_s: float = 10.0
    slow_factor: float = 50.0

    def plan(self, workers: Sequence[WorkerId], *, span_s: float, seed: int) -> list[Fault]:
        """Every fault of the run, over workers and the first `span_s` seconds evenly."""
        draws = Draws(seed, 0x6661756C74)
        counts = {FaultKind.CRASH: self.crashes, FaultKind.HANG: self.hangs, FaultKind.SLOW: self.slow_links}
        return [
            Fault(
                kind=kind,
                worker_id=workers[int(draws.unit() * len(workers))],
                at_s=draws.unit() * span_s,
                lasts_s=self._lasts_s(kind, draws.unit()),
            )
            for kind, count in counts.items()
            for _ in range(count)
        ]

    def _lasts_s(self, kind: FaultKind, share: float) -> float:
        if kind is FaultKind.CRASH:
            return self.restart_s
        return self.slow_s if kind is FaultKind.SLOW else self.hang_s * share


def parse_faults(text: str, *, option: str) -> FaultSettings:
    """Settings from `SPEC_FORM`. Raises ConfigError naming `option`."""
    settings = FaultSettings()
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            settings = _with(settings, name.strip(), value)
        except ValueError:
            message = f"{option}: {part!r} is not a fault; allowed: {SPEC_FORM}, shares within [0, 1)"
            raise ConfigError(message) from None
    return settings


def _with(settings: FaultSettings, name: str, value: str) -> FaultSettings:
    match name:
        case "crash":
            return replace(settings, crashes=_count(value))
        case "hang":
            return replace(settings, hangs=_count(value))
        case "slow":
            return replace(settings, slow_links=_count(value))
        case "duplicate":
            return replace(settings, duplicate_rate=_share(value))
        case "reorder":
            return replace(settings, reorder_rate=_share(value))
    raise ValueError(name)


def _count(value: str) -> int:
    count = int(value)
    if not 0 <= count <= MAX_FAULTS:
        raise ValueError(value)
    return count


def _share(value: str) -> float:
    share = float(value)
    if not 0 <= share < 1:
        raise ValueError(value)
    return share
