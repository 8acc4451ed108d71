"""How many tokens a forward reveals: the part of a diffusion model that the simulator needs."""

from __future__ import annotations

import bisect
import itertools

from common.core.work import BlockWork, StepDelta
from common.sim.cost_model import DecodeItem, PrefillItem
from common.sim.draws import mix

_TABLE_BITS = 12
_MAX_TABLED = 4096


class RevealModel:
    """A forward reveals k >= 1 tokens, geometrically distributed with that mean (before the block's end cuts it).

    k depends on (request seed, block, step) alone, as the engine's tokens do: a repeated attempt reveals the same.
    """

    def __init__(self, tokens_per_step: float) -> None:
        assert tokens_per_step >= 1.0, tokens_per_step
        self.tokens_per_step = tokens_per_step
        again = 1.0 - 1.0 / tokens_per_step
        # Products, not powers: IEEE multiplication is the same on every machine, a libm's pow is not.
        survival = list(itertools.accumulate(itertools.repeat(again, _MAX_TABLED), lambda left, p: left * p))
        below = [1.0 - left for left in survival]
        size = 1 << _TABLE_BITS
        self._table = [1 + bisect.bisect_right(below, (slot + 0.5) / size) for slot in range(size)]

    def count(self, seed: int, block: int, step: int) -> int:
        """Tokens that this forward would reveal in an endless block."""
        return self._table[mix(seed, block, step) >> (64 - _TABLE_BITS)]


class SimBlock:
    """One block being denoised: reveals from left to right, `RevealModel.count` tokens a step.

    `decode_item` and `prefill_item` are what a step of either kind adds to a forward.
    """

    __slots__ = ("_block", "_end", "_model", "_next", "_seed", "_step", "decode_item", "prefill_item")

    def __init__(self, work: BlockWork, model: RevealModel, first: StepDelta | None) -> None:
        self.decode_item = DecodeItem(work.decode_step_tokens(), work.canvas_tokens)
        self.prefill_item = PrefillItem(work.canvas_tokens, work.block_length_tokens)
        self._seed, self._block = work.sampling.seed, work.attempt.block
        self._model = model
        self._next = work.block_start_position + (0 if first is None else len(first.positions))
        self._end = work.block_start_position + work.block_length_tokens
        self._step = 0 if first is None else first.step + 1

    def advance(self) -> StepDelta:
        """Run the next step (0 is the prefill's own)."""
        seed = self._seed
        revealed = min(self._model.count(seed, self._block, self._step), self._end - self._next)
        positions = tuple(range(self._next, self._next + revealed))
        delta = StepDelta(
            step=self._step,
            positions=positions,
            token_ids=tuple([(seed + position * 7919) % 50_000 for position in positions]),
            confidences=(1.0,) * revealed,
        )
        self._next += revealed
        self._step += 1
        return delta
