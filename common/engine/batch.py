"""What one forward works on: blocks of different requests, each with its query span, packed into one row list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.core.ids import BlockAttempt
from common.core.params import CacheMode, SamplingParams
from common.engine.invariance import RowPlan


class BlockState:
    """One block attempt on the device: its canvas (updated in place), where its K/V lies, what is still masked.

    `canvas` and `slots` are int64 [canvas_tokens] on the device; `masked` holds the block's masked canvas indices,
    ascending, on the host. The next step is a prefill exactly when `next_step` is 0.
    """

    __slots__ = (
        "attempt",
        "block_end",
        "block_start",
        "cache_mode",
        "canvas",
        "masked",
        "next_step",
        "prompt_tokens",
        "sampling",
        "slots",
    )

    def __init__(
        self,
        *,
        attempt: BlockAttempt,
        prompt_tokens: int,
        canvas: Tensor,
        slots: Tensor,
        block_length_tokens: int,
        cache_mode: CacheMode,
        sampling: SamplingParams,
        masked: Sequence[int],
        next_step: int,
    ) -> None:
        self.attempt = attempt
        self.prompt_tokens = prompt_tokens
        self.canvas = canvas
        self.slots = slots
        self.block_start = prompt_tokens + attempt.block * block_length_tokens
        self.block_end = self.block_start + block_length_tokens
        self.cache_mode = cache_mode
        self.sampling = sampling
        self.masked = tuple(masked)
        self.next_step = next_step

    @property
    def is_prefill(self) -> bool:
        """Whether the next step runs over the whole canvas and writes K/V for every position."""
        return self.next_step == 0

    @property
    def canvas_tokens(self) -> int:
        """Length of the canvas: prompt plus all blocks."""
        return self.canvas.shape[0]

    def query_span(self, lookback_tokens: int) -> tuple[int, int]:
        """Canvas range [start, end) that the next step computes queries (and rewrites K/V) for.

        Shifted models need the row before the block to predict its first position: `lookback_tokens` widens the span.
        """
        if self.is_prefill or self.cache_mode is CacheMode.NONE:
            return 0, self.canvas_tokens
        start = max(self.block_start - lookback_tokens, 0)
        return start, self.block_end if self.cache_mode is CacheMode.DUAL else self.canvas_tokens

    def reveal(self, tokens: Mapping[int, int]) -> None:
        """Fill masked canvas indices (`tokens`: index → id) and move on to the next step."""
        assert tokens.keys() <= set(self.masked), f"{self.attempt}: revealing unmasked positions"
        device = self.canvas.device
        indices = torch.tensor(list(tokens), dtype=torch.int64).to(device)
        self.canvas[indices] = torch.tensor(list(tokens.values()), dtype=torch.int64).to(device)
        self.masked = tuple(index for index in self.masked if index not in tokens)
        self.next_step += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One request's rows [first_row, end_row) of a batch; `kv_slots` are the slots of all its canvas positions."""

    first_row: int
    end_row: int
    kv_slots: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Rows of one forward, padded as the row plan wants (padding comes last, writes no K/V and is read by nobody).

    `token_ids`, `positions`: int64 [padded rows]; `slots`: int64 [real rows]; `sampled_rows`: int64, one row for each
    masked position of each item in order, padded with row 0 to whole row multiples; `sampled_count` are real.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    segments: tuple[Segment, ...]
    sampled_rows: Tensor
    sampled_count: int

    @property
    def real_rows(self) -> int:
        """Rows that belong to requests."""
        return self.slots.shape[0]


def pack(items: Sequence[BlockState], *, lookback_tokens: int, row_plan: RowPlan) -> PackedBatch:
    """Lay the items' query spans one after the other. `items` must not be empty."""
    device = items[0].canvas.device
    token_ids: list[Tensor] = []
    positions: list[Tensor] = []
    slots: list[Tensor] = []
    segments: list[Segment] = []
    sampled: list[int] = []
    rows = 0
    for item in items:
        start, end = item.query_span(lookback_tokens)
        token_ids.append(item.canvas[start:end])
        positions.append(torch.arange(start, end, device=device))
        slots.append(item.slots[start:end])
        segments.append(Segment(first_row=rows, end_row=rows + end - start, kv_slots=item.slots))
        sampled.extend(rows + max(index - lookback_tokens, 0) - start for index in item.masked)
        rows += end - start
    padding = torch.zeros(row_plan.padded(rows) - rows, dtype=torch.int64, device=device)
    count = len(sampled)
    sampled.extend([0] * (row_plan.padded(count) - count))
    return PackedBatch(
        token_ids=torch.cat([*token_ids, padding]),
        positions=torch.cat([*positions, padding]),
        slots=torch.cat(slots),
        segments=tuple(segments),
        sampled_rows=torch.tensor(sampled, dtype=torch.int64).to(device),
        sampled_count=count,
    )
