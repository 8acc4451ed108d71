"""A workload: arrivals and lengths together, and the named ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.workload.arrivals import Arrivals
from common.workload.lengths import Lengths, LognormalLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """One request to come: when (seconds from the start), and its lengths in tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRule:
    """What is done to lengths as drawn or recorded: outputs are stretched by `output_scale`, then cut at
    `max_output_tokens` and so that the sum with the prompt stays within `max_total_tokens` (None: not cut).
    """

    output_scale: float = 1.0
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None

    def apply(self, prompt_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Lengths by this rule, each at least 1."""
        output_tokens = max(1, round(output_tokens * self.output_scale))
        if self.max_output_tokens is not None:
            output_tokens = min(output_tokens, self.max_output_tokens)
        if self.max_total_tokens is not None:
            prompt_tokens = min(prompt_tokens, self.max_total_tokens - 1)
            output_tokens = min(output_tokens, self.max_total_tokens - prompt_tokens)
        return prompt_tokens, output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthModel:
    """Joint lengths of prompt and output, in tokens."""

    prompt: Lengths
    output: Lengths
    rule: LengthRule

    def draws(self, rng: random.Random) -> Iterator[tuple[int, int]]:
        """Endless (prompt tokens, output tokens)."""
        while True:
            yield self.rule.apply(self.prompt.draw(rng), self.output.draw(rng))


CONTEXT_TOKENS = 4096
_IN_CONTEXT = LengthRule(max_total_tokens=CONTEXT_TOKENS)

NAMED_LENGTHS: dict[str, LengthModel] = {
    "sharegpt": LengthModel(prompt=LognormalLengths(795, 2007), output=LognormalLengths(596, 2668), rule=_IN_CONTEXT),
    "arxiv": LengthModel(prompt=LognormalLengths(2827, 3923), output=LognormalLengths(890, 1623), rule=_IN_CONTEXT),
}
"""Medians and 99th percentiles of the paper's table (arXiv 2607.04206); sums cut at 4096 as in its trace script."""


def draw_requests(
    *, arrivals: Arrivals, lengths: LengthModel | Sequence[tuple[int, int]], requests: int, seed: int
) -> list[RequestShape]:
    """The first `requests` requests, fewer when arrivals or recorded lengths (prompt, output) end before.

    Times and lengths have separate random streams: another rate meets the same requests.
    """
    times_s = arrivals.times_s(random.Random(f"arrivals {seed}"))
    pairs = lengths.draws(random.Random(f"lengths {seed}")) if isinstance(lengths, LengthModel) else lengths
    return [
        RequestShape(arrival_s=time_s, prompt_tokens=prompt, output_tokens=output)
        for time_s, (prompt, output) in zip(itertools.islice(times_s, requests), pairs, strict=False)
    ]
