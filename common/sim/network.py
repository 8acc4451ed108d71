"""Messages between gateway, scheduler and workers: how long they take, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.core.ids import WorkerId
from common.sim.agenda import Agenda
from common.sim.draws import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """`delay_s` is one way. Of all messages a share `reorder_rate` is held up by up to `hold_up_s`, so that messages of
    other lanes overtake it; a share `duplicate_rate` arrives twice.
    """

    delay_s: float = 0.0002
    reorder_rate: float = 0.0
    duplicate_rate: float = 0.0
    hold_up_s: float = 0.05


class Lane:
    """What stays in order: the messages of one call, one way, or of one heartbeat stream (HTTP/2 sees to that)."""

    __slots__ = ("free_s",)

    def __init__(self) -> None:
        self.free_s = 0.0


class Network:
    """Delivers messages by the agenda. `slow` holds the factors of links that are slow at present, by worker."""

    def __init__(self, agenda: Agenda, settings: NetworkSettings, *, seed: int) -> None:
        self._agenda = agenda
        self._settings = settings
        self._draws = Draws(seed, 0x6E6574)
        self.slow: dict[WorkerId, float] = {}

    def delay_s(self, worker_id: WorkerId | None) -> float:
        """One-way delay on the link of that worker (None: between gateway and scheduler)."""
        delay_s = self._settings.delay_s
        return delay_s * self.slow.get(worker_id, 1.0) if self.slow and worker_id is not None else delay_s

    def send(
        self, lane: Lane, worker_id: WorkerId | None, deliver: Callable[..., None], *args: Any, once: bool = False
    ) -> None:
        """Have `deliver(*args)` called at the other end; `once`: the transport sees to it that it comes once."""
        settings = self._settings
        arrival_s = self._agenda.now + self.delay_s(worker_id)
        if settings.reorder_rate and self._draws.unit() < settings.reorder_rate:
            arrival_s += self._draws.unit() * settings.hold_up_s
        if arrival_s < lane.free_s:
            arrival_s = lane.free_s
        lane.free_s = arrival_s
        self._agenda.at(arrival_s, deliver, *args)
        if not once and settings.duplicate_rate and self._draws.unit() < settings.duplicate_rate:
            self._agenda.at(arrival_s + self._draws.unit() * settings.hold_up_s, deliver, *args)
