"""Request specs for tests, and one way to drive blocks through an engine by hand."""

from __future__ import annotations

import random
from typing import Any

from common.core.block import BlockProgress
from common.core.ids import BlockAttempt, RequestId
from common.core.params import (
    CacheMode,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
    SamplingParams,
)
from common.core.work import RequestSpec
from common.engine.engine import BlockState, Engine

STRATEGIES: tuple[RevealStrategy, ...] = (
    ConfidenceThreshold(0.3),
    ConfidenceThreshold(0.7),
    ConfidenceQuota(4),
    ConfidenceDynamic(1.2),
    RandomReveal(),
)


def request(prompt: tuple[int, ...] = (1, 2, 3), **changes: Any) -> RequestSpec:
    """A greedy request: 32 tokens, one block, dual cache; `strategy`, `temperature`, `seed` may be among `changes`."""
    sampling = SamplingParams(
        strategy=changes.pop("strategy", ConfidenceThreshold(0.9)),
        temperature=changes.pop("temperature", 0.0),
        seed=changes.pop("seed", 0),
    )
    values: dict[str, Any] = {
        "request_id": RequestId("r"),
        "prompt_token_ids": prompt,
        "max_tokens": 32,
        "block_length_tokens": 32,
        "cache_mode": CacheMode.DUAL,
        "sampling": sampling,
        "ignore_eos": True,
    }
    return RequestSpec(**(values | changes))


def random_request(rng: random.Random, name: str, *, vocab: int) -> RequestSpec:
    """Anything goes: lengths, block length, strategy, temperature, cache mode. Ids stay below `vocab`."""
    block_length = rng.choice([1, 5, 8, 16, 32])
    return request(
        tuple(rng.randrange(vocab) for _ in range(rng.choice([1, 2, 7, 16, 33, 90, 150]))),
        request_id=RequestId(name),
        max_tokens=block_length * rng.randint(1, 2),
        block_length_tokens=block_length,
        cache_mode=rng.choice(list(CacheMode)),
        strategy=rng.choice(STRATEGIES),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.5]),
        seed=rng.getrandbits(64),
    )


class BlockRun:
    """A request driven step by step: `state` is its open block, None when it has ended."""

    def __init__(self, engine: Engine, spec: RequestSpec, page_ids: list[int]) -> None:
        self.spec = spec
        self.page_ids = page_ids
        self.generated: list[int] = []
        self._engine = engine
        self._open(0)

    def _open(self, block: int) -> None:
        spec = self.spec
        self.state: BlockState | None = self._engine.open_block(
            attempt=BlockAttempt(spec.request_id, block, 0),
            prompt_token_ids=spec.prompt_token_ids,
            generated_token_ids=self.generated,
            canvas_tokens=spec.canvas_tokens,
            block_length_tokens=spec.block_length_tokens,
            block=block,
            cache_mode=spec.cache_mode,
            sampling=spec.sampling,
            page_ids=self.page_ids,
        )
        self.progress = BlockProgress(
            block_start_position=block * spec.block_length_tokens,
            block_length_tokens=spec.block_length_tokens,
            cut_position=spec.max_tokens,
            eos_token_id=None,
            ignore_eos=True,
        )

    def accept(self, positions: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """Record a step; move to the next block when this one is complete."""
        assert self.state is not None
        self.progress.reveal(positions, tokens)
        if self.progress.complete:
            self.generated.extend(self.progress.output_token_ids)
            if self.progress.finish is None:
                self._open(self.state.attempt.block + 1)
            else:
                self.state = None
