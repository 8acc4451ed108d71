"""A workload: arrivals and lengths together, and the named ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common.workload.arrivals import Arrivals
from common.workload.lengths import Lengths, LognormalLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """One request to come: when (seconds from the start), and its lengths in tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthModel:
    """Joint lengths of prompt and output. `max_total_tokens`: longer outputs are cut so that the sum stays within."""

    prompt: Lengths
    output: Lengths
    output_scale: float = 1.0
    max_total_tokens: int | None = None

    def draws(self, rng: random.Random) -> Iterator[tuple[int, int]]:
        """Endless (prompt tokens, output tokens)."""
        while True:
            prompt = self.prompt.draw(rng)
            output = max(1, round(self.output.draw(rng) * self.output_scale))
            if self.max_total_tokens is not None:
                prompt = min(prompt, self.max_total_tokens - 1)
                output = min(output, self.max_total_tokens - prompt)
            yield prompt, output


NAMED_LENGTHS: dict[str, LengthModel] = {
    "sharegpt": LengthModel(
        prompt=LognormalLengths(795, 2007), output=LognormalLengths(596, 2668), max_total_tokens=4096
    ),
    "arxiv": LengthModel(
        prompt=LognormalLengths(2827, 3923), output=LognormalLengths(890, 1623), max_total_tokens=4096
    ),
}
"""Medians and 99th percentiles of the paper's table (arXiv 2607.04206); sums cut at 4096 as in its trace script."""


def scaled(model: LengthModel, output_scale: float) -> LengthModel:
    """The same lengths with outputs `output_scale` times as long."""
    return replace(model, output_scale=model.output_scale * output_scale)


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
