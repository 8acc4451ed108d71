"""What every part of a simulated cluster shares."""

from __future__ import annotations

from dataclasses import dataclass

from common.sim.agenda import Agenda
from common.sim.cost_model import StepCost
from common.sim.data_plane import DataPlane
from common.sim.effect_digest import EffectDigest
from common.sim.network import Network
from common.sim.records import Recorder
from common.sim.reveal import RevealModel


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Clock, wires, costs, and the books."""

    agenda: Agenda
    network: Network
    data_plane: DataPlane
    cost: StepCost
    reveal: RevealModel
    recorder: Recorder
    digest: EffectDigest

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.agenda.now
