"""Which token each masked position proposes, how sure the model is, and which proposals are revealed.

Fast-dLLM's rules as restated in the reference notes (algorithms, section 2). Proposals come from tensors; the choice
of what to reveal is plain Python over at most a block of floats, so a batch cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.core.params import (
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
    SamplingParams,
)
from common.engine.randomness import as_int64, draw, gumbel

_CHUNK_ELEMENTS = 2**22  # float64 work buffers stay at 32 MiB whatever the vocabulary and the batch
_TOKEN_LANE, _REVEAL_LANE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBlock:
    """One item's part of the sampled rows: its masked `positions` (generated-relative, ascending) at one step."""

    sampling: SamplingParams
    block: int
    step: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """What one step reveals for one item: parallel tuples, positions ascending, confidences float64."""

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]


def sample(logits: Tensor, items: Sequence[SampledBlock], *, mask_token_id: int) -> list[Revealed]:
    """Reveal at least one position of every item.

    `logits` is [rows, vocabulary], any float dtype: one row for each position of each item, in order. Every result is
    the same as if its item had been sampled alone.
    """
    temperatures = [item.sampling.temperature for item in items for _ in item.positions]
    keys = [
        draw(item.sampling.seed, item.block, item.step, _TOKEN_LANE, position)
        for item in items
        for position in item.positions
    ]
    tokens, confidences = propose(logits, temperatures=temperatures, keys=keys, mask_token_id=mask_token_id)
    revealed = []
    first = 0
    for item in items:
        end = first + len(item.positions)
        revealed.append(_reveal(item, tokens[first:end], confidences[first:end]))
        first = end
    return revealed


def propose(
    logits: Tensor, *, temperatures: Sequence[float], keys: Sequence[int], mask_token_id: int
) -> tuple[list[int], list[float]]:
    """Proposed token and its confidence for each row of `logits` [rows, vocabulary].

    Temperature 0: the largest logit, lowest id first. Above: Gumbel-max, argmax of ℓ − T·ln(−ln u), noise from the
    row's key. The mask id is never proposed. Confidence: softmax over the whole vocabulary, float64, no temperature.
    """
    assert logits.shape[0] == len(temperatures) == len(keys), "one temperature and one key for each row"
    rows_per_chunk = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    tokens: list[int] = []
    confidences: list[float] = []
    for first in range(0, len(keys), rows_per_chunk):
        rows = slice(first, first + rows_per_chunk)
        scores = logits[rows].to(torch.float64, copy=True)
        probabilities = torch.softmax(scores, dim=-1)
        scores[:, mask_token_id] = -torch.inf
        proposed = _perturbed(scores, temperatures[rows], keys[rows]).argmax(dim=-1)
        tokens += proposed.tolist()
        confidences += probabilities.gather(1, proposed[:, None]).squeeze(1).tolist()
    return tokens, confidences


def _perturbed(scores: Tensor, temperatures: Sequence[float], keys: Sequence[int]) -> Tensor:
    """Scores to maximise: with noise in the rows whose temperature is above 0 (scaled so that nothing overflows)."""
    noisy = [row for row, temperature in enumerate(temperatures) if temperature > 0.0]
    if not noisy:
        return scores
    rows = torch.tensor(noisy, dtype=torch.int64).to(scores.device)
    noise = gumbel(torch.tensor([as_int64(keys[row]) for row in noisy]).to(scores.device), scores.shape[1])
    heat = torch.tensor([temperatures[row] for row in noisy], dtype=torch.float64).to(scores.device)[:, None]
    scores[rows] = scores[rows] / heat.clamp(min=1.0) + noise * heat.clamp(max=1.0)
    return scores


def _reveal(item: SampledBlock, tokens: Sequence[int], confidences: Sequence[float]) -> Revealed:
    chosen = choose(item, confidences)
    return Revealed(
        positions=tuple(item.positions[index] for index in chosen),
        tokens=tuple(tokens[index] for index in chosen),
        confidences=tuple(confidences[index] for index in chosen),
    )


def choose(item: SampledBlock, confidences: Sequence[float]) -> list[int]:
    """Indices into `item.positions` to reveal, ascending, never empty; equal confidences go by position."""
    ranked = sorted(range(len(confidences)), key=lambda index: (-confidences[index], index))
    strategy = item.sampling.strategy
    if isinstance(strategy, RandomReveal):
        return sorted(_random_choice(item))
    return sorted(ranked[: _reveal_count(strategy, [confidences[index] for index in ranked])])


def _reveal_count(strategy: RevealStrategy, ranked: Sequence[float]) -> int:
    """How many of the confidences, sorted descending, are revealed."""
    match strategy:
        case ConfidenceThreshold(threshold):
            return max(1, sum(confidence >= threshold for confidence in ranked))
        case ConfidenceQuota(quota):
            return min(quota, len(ranked))
        case ConfidenceDynamic(factor):
            return _dynamic_count(factor, ranked)
    raise AssertionError(f"no count for {strategy}")


def _dynamic_count(factor: float, ranked: Sequence[float]) -> int:
    """Fast-dLLM's factor rule: stop at the first confidence below 1 − factor / (rank + 2), the top one aside."""
    for rank in range(1, len(ranked)):
        if ranked[rank] < 1.0 - factor / (rank + 2):
            return rank
    return len(ranked)


def _random_choice(item: SampledBlock) -> list[int]:
    """A uniform count of uniformly chosen positions: those with the smallest draws."""
    seed, step_path = item.sampling.seed, (item.block, item.step, _REVEAL_LANE)
    count = 1 + (draw(seed, *step_path) * len(item.positions) >> 64)
    draws = [draw(seed, *step_path, position) for position in item.positions]
    return sorted(range(len(draws)), key=lambda index: (draws[index], index))[:count]
