"""Which positions of a batch are masked, and how much each one's loss counts.

Absorbing-mask diffusion (LLaDA, arXiv 2502.09992): a share t of the generated positions is masked, and the
cross-entropy of each masked one counts 1/t. Half of the canvases are masked anywhere. The other half looks as it does
while a server writes block by block: earlier blocks clean, the current one masked at t, later ones masked, not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK_LENGTHS = (8, 16, 32)
_LEAST_SHARE = 0.02
_PADDING_WEIGHT = 0.25
"""End-of-text positions after the first are many and easy: they count less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Both [batch, canvas]: where the mask id stands, and the weight of each position's loss (0: not counted)."""

    masked: NDArray[np.bool_]
    weight: NDArray[np.float32]


def draw_noise(
    rng: np.random.Generator, *, prompt_tokens: NDArray[np.int64], answer_tokens: NDArray[np.int64], canvas_tokens: int
) -> Noise:
    """Noise for canvases of one length. `answer_tokens` include one end-of-text; both inputs are [batch].

    The shares t are stratified over the batch: each n-th part of (0, 1] is drawn once, which steadies the loss.
    """
    batch = len(prompt_tokens)
    position = np.arange(canvas_tokens)[None, :] - prompt_tokens[:, None]  # generated-relative
    share = ((rng.permutation(batch) + rng.random(batch)) / batch).clip(_LEAST_SHARE, 1.0)[:, None]
    hit = rng.random((batch, canvas_tokens)) < share
    block = rng.choice(_BLOCK_LENGTHS, batch)
    # A block that the answer reaches, and sometimes the one after it.
    current = np.floor(rng.random(batch) * (answer_tokens / block + 0.1)).astype(np.int64)
    start = np.where(rng.random(batch) < 0.5, current * block, -1)[:, None]
    by_block = start >= 0
    within = (position >= start) & (position < start + block[:, None])
    counted = np.where(by_block, within, position >= 0) & (position >= 0)
    later = by_block & (position >= start + block[:, None])
    importance = np.where(position < answer_tokens[:, None], 1.0, _PADDING_WEIGHT)
    masked = (counted & hit) | later
    return Noise(masked=masked, weight=np.where(counted & hit, importance / share, 0.0).astype(np.float32))
