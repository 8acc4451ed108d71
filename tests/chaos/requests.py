"""The requests of a storm: all lengths, cache modes, strategies and temperatures, from one seed."""

from __future__ import annotations

import random

from common.core.params import (
    CacheMode,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
)
from common.generation_input import GenerationInput

_STRATEGIES: tuple[RevealStrategy, ...] = (
    *(ConfidenceQuota(1), ConfidenceThreshold(0.3), ConfidenceQuota(3), ConfidenceDynamic(1.0), RandomReveal()),
)
_BYTES = 256
"""The token ids of the random checkpoint below its special tokens."""


def mixed_requests(count: int, *, seed: int, longest_tokens: int) -> list[GenerationInput]:
    """`count` requests, no two alike: prompts of 1 to 89 tokens, 16 to `longest_tokens` generated ones."""
    choose = random.Random(seed)
    return [
        GenerationInput(
            text=None,
            token_ids=tuple(choose.randrange(_BYTES) for _ in range(choose.randrange(1, 90))),
            max_tokens=choose.randrange(16, longest_tokens + 1),
            block_length_tokens=choose.choice((8, 16, 32, 32)),
            cache_mode=list(CacheMode)[index % 3],
            strategy=_STRATEGIES[index % len(_STRATEGIES)],
            temperature=choose.choice((0.0, 0.7)),
            seed=index,
            ignore_eos=choose.random() < 0.7,
        )
        for index in range(count)
    ]
