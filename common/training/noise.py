"""Which positions of a batch are masked, and how much each one's loss counts.

Absorbing-mask diffusion (LLaDA, arXiv 2502.09992): a share t of the generated positions is masked, and the
cross-entropy of each masked one counts 1/t. Half of the canvases are masked anywhere. The others look as they do while
a server writes block by block, earlier blocks clean and later ones masked, in one of two ways. In some the current
block is masked at t. In the rest it is written up to a front, with a few tokens of what follows already there, and the
positions next to the front count: the easiest to tell, which a decoder reveals first, and where working that is shown
step by step is learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK_LENGTHS = (8, 16, 32)
_LEAST_SHARE = 0.02
_PADDING_WEIGHT = 0.25
"""End-of-text positions after the first are many and easy: they count less."""
_WHOLE_SHARE, _FRONT_SHARE = 0.5, 0.3
"""Of the canvases: masked anywhere, and written up to a front."""
_FRONT_TOKENS = 4
_FRONT_WEIGHT = 3.0
_REVEALED_AHEAD = 0.15


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
    start = (current * block)[:, None]
    # Where in the answer the front is; of a block that the answer does not fill, never in its padding.
    written = np.minimum(block, np.maximum(answer_tokens - start[:, 0], 1))
    front = start + np.floor(rng.random(batch) * written).astype(np.int64)[:, None]
    kind = rng.random(batch)[:, None]
    whole, at_front = kind < _WHOLE_SHARE, kind >= 1 - _FRONT_SHARE
    within = (position >= start) & (position < start + block[:, None])
    later = ~whole & (position >= start + block[:, None])
    ahead = (position >= front) & (rng.random((batch, canvas_tokens)) >= _REVEALED_AHEAD)
    masked = np.where(whole, (position >= 0) & hit, later | (within & np.where(at_front, ahead, hit)))
    counted = masked & ~later & (~at_front | (position < front + _FRONT_TOKENS))
    importance = np.where(position < answer_tokens[:, None], 1.0, _PADDING_WEIGHT)
    weight = importance * np.where(at_front, _FRONT_WEIGHT, 1.0 / share)
    return Noise(masked=masked, weight=np.where(counted, weight, 0.0).astype(np.float32))
