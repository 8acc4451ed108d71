"""How many prefills leave K/V to be read, of late: what an early read may count on."""

from __future__ import annotations

from common.core.params import CacheMode, RevealStrategy
from common.core.work import RequestSpec

SHARE_WEIGHT = 1 / 32
"""Weight of the newest prefill in the share."""

MAX_STRATEGIES = 64
"""Strategies whose share is known; of more, the one that was seen last longest ago is forgotten."""


class KeptShares:
    """Exponential means over prefills of blocks that would keep K/V: 1 for those that did, 0 for those whose own step
    finished the block. Each begins at 1: most models reveal a few tokens of a block at once, and only small ones finish
    it. One for each strategy, for it says how much a step reveals: a quota hardly ever finishes a block that is longer.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._shares: dict[RevealStrategy, float] = {}

    def observe(self, strategy: RevealStrategy, kept: bool) -> None:
        """A prefill has ended."""
        share = self._shares.pop(strategy, 1.0)
        self._shares[strategy] = share + SHARE_WEIGHT * (kept - share)
        if len(self._shares) > MAX_STRATEGIES:
            del self._shares[next(iter(self._shares))]

    def suffice_for(self, spec: RequestSpec) -> bool:
        """Whether reading early is worth the calls for nothing. Mode none leaves no K/V, and an idle request
        takes nothing beforehand.
        """
        if spec.cache_mode is CacheMode.NONE or spec.idle:
            return False
        return self._shares.get(spec.sampling.strategy, 1.0) >= self._least
