"""How many prefills leave K/V to be read, of late: what an early read may count on."""

from __future__ import annotations

SHARE_WEIGHT = 1 / 32
"""Weight of the newest prefill in the share."""


class KeptShare:
    """Exponential mean over prefills of blocks that would keep K/V: 1 for those that did, 0 for those whose own step
    finished the block. Begins at 1: most models reveal a few tokens of a block at once, and only small ones finish it.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self.share = 1.0

    def observe(self, kept: bool) -> None:
        """A prefill has ended."""
        self.share += SHARE_WEIGHT * (kept - self.share)

    @property
    def suffices(self) -> bool:
        """Whether reading early is worth the calls that will be for nothing."""
        return self.share >= self._least
