"""One point of the evaluation's grid: what a decode step reuses, what it reveals, how long a block is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.core.params import (
    CacheMode,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
)
from common.generation_input import GenerationInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the questions are asked. Everything else is greedy and the same for all settings."""

    cache_mode: CacheMode
    strategy: RevealStrategy
    block_length_tokens: int

    @property
    def baseline(self) -> Setting:
        """The same without any cache: what the answers are compared with, token for token."""
        return replace(self, cache_mode=CacheMode.NONE)

    @property
    def label(self) -> str:
        """For a person: "dual, threshold 0.9, block 32"."""
        return f"{self.cache_mode.value}, {strategy_label(self.strategy)}, block {self.block_length_tokens}"

    def ask(self, prompt: str, *, max_tokens: int) -> GenerationInput:
        """The greedy request for one question; ends at the model's end of text."""
        return GenerationInput(
            text=prompt,
            token_ids=None,
            max_tokens=max_tokens,
            block_length_tokens=self.block_length_tokens,
            cache_mode=self.cache_mode,
            strategy=self.strategy,
        )


def grid(
    cache_modes: Sequence[CacheMode], strategies: Sequence[RevealStrategy], block_lengths_tokens: Sequence[int]
) -> tuple[Setting, ...]:
    """Every combination, each once. Cache mode NONE is always there, before the modes compared with it."""
    modes = dict.fromkeys((CacheMode.NONE, *cache_modes))
    return tuple(
        Setting(cache_mode=mode, strategy=strategy, block_length_tokens=length)
        for length, strategy, mode in itertools.product(
            dict.fromkeys(block_lengths_tokens), dict.fromkeys(strategies), modes
        )
    )


def strategy_label(strategy: RevealStrategy) -> str:
    """As the command line's options spell it: "threshold 0.9", "quota 1"."""
    match strategy:
        case ConfidenceThreshold(threshold):
            return f"threshold {threshold:g}"
        case ConfidenceQuota(quota):
            return f"quota {quota}"
        case ConfidenceDynamic(factor):
            return f"dynamic {factor:g}"
        case RandomReveal():
            return "random"
