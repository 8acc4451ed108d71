"""What a caller may ask for: cache mode, reveal strategy, temperature, seed.

Sampling rules are those of Fast-dLLM as restated in the reference notes (algorithms, section 2). Validation lives
here so that gateway, scheduler, CLI and engine refuse the same values with the same words.
"""

from __future__ import annotations

import enum
import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import BadSamplingParams

DEFAULT_BLOCK_LENGTH_TOKENS = 32
DEFAULT_CONFIDENCE_THRESHOLD = 0.9
MAX_SEED = 2**64 - 1


class CacheMode(enum.Enum):
    """Which K/V a decode step reuses from the block's prefill.

    DUAL: prefix and masked suffix stay cached, queries are the block. PREFIX: only the prefix stays cached, queries
    run from block start to canvas end. NONE: every step is a whole-canvas forward.
    """

    DUAL = "dual"
    PREFIX = "prefix"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ConfidenceThreshold:
    """Reveal every masked position with confidence >= `threshold` (float64), and always the most confident one."""

    threshold: float

    def validate(self) -> None:
        """Raise `BadSamplingParams` unless 0 <= threshold <= 1."""
        if not (math.isfinite(self.threshold) and 0.0 <= self.threshold <= 1.0):
            raise BadSamplingParams("confidence_threshold", f"must be within [0, 1], not {self.threshold}")


@dataclass(frozen=True, slots=True)
class ConfidenceQuota:
    """Reveal the `quota` most confident masked positions (all of them when fewer remain)."""

    quota: int

    def validate(self) -> None:
        """Raise `BadSamplingParams` unless quota >= 1."""
        if self.quota < 1:
            raise BadSamplingParams("confidence_quota", f"must be at least 1, not {self.quota}")


@dataclass(frozen=True, slots=True)
class ConfidenceDynamic:
    """Reveal a count that adapts to the sorted confidences (Fast-dLLM's factor rule)."""

    factor: float

    def validate(self) -> None:
        """Raise `BadSamplingParams` unless factor is finite and > 0."""
        if not (math.isfinite(self.factor) and self.factor > 0.0):
            raise BadSamplingParams("confidence_dynamic", f"must be a finite number above 0, not {self.factor}")


@dataclass(frozen=True, slots=True)
class RandomReveal:
    """Reveal a uniform count of uniformly chosen masked positions."""

    def validate(self) -> None:
        """Nothing to refuse."""


RevealStrategy = ConfidenceThreshold | ConfidenceQuota | ConfidenceDynamic | RandomReveal


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are proposed and revealed. `temperature` 0 is greedy; `seed` is 64-bit and already resolved."""

    strategy: RevealStrategy
    temperature: float
    seed: int

    def validate(self) -> None:
        """Raise `BadSamplingParams` naming the field that is out of range."""
        self.strategy.validate()
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise BadSamplingParams("temperature", f"must be a finite number, 0 or above, not {self.temperature}")
        if not 0 <= self.seed <= MAX_SEED:
            raise BadSamplingParams("seed", f"must be within [0, 2^64 - 1], not {self.seed}")


def default_seed(*, prompt_token_ids: Sequence[int], max_tokens: int, block_length_tokens: int) -> int:
    """Seed for a request that names none: a function of its content only, so a repeat gives the same tokens."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(struct.pack("<qq", max_tokens, block_length_tokens))
    digest.update(struct.pack(f"<{len(prompt_token_ids)}q", *prompt_token_ids))
    return int.from_bytes(digest.digest(), "little")
