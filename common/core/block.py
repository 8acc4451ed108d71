"""One block being filled: which positions are still masked, and when the block, or the whole request, is done.

Workers and the in-process generator share this rule, so a request ends at the same token wherever it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.core.work import FinishReason


class BlockProgress:
    """Tokens revealed so far in one block. Positions are generated-relative.

    A block is complete when no masked position is left before min(block end, `cut_position`). Unless `ignore_eos`,
    it is also complete when an EOS before that cut has every earlier position of the block revealed: revealed tokens
    never change, so the output equals that of the full run cut at its first EOS.
    """

    __slots__ = ("_block_end", "_cut", "_end", "_eos", "_frontier", "_start", "_stopped", "_tokens", "complete")

    complete: bool
    """Whether the block needs no further step."""

    def __init__(
        self,
        *,
        block_start_position: int,
        block_length_tokens: int,
        cut_position: int,
        eos_token_id: int | None,
        ignore_eos: bool,
    ) -> None:
        assert block_length_tokens > 0, f"block of {block_length_tokens} tokens"
        assert 0 <= block_start_position < cut_position, f"block at {block_start_position} past cut {cut_position}"
        self._start = block_start_position
        self._block_end = block_start_position + block_length_tokens
        self._cut = cut_position
        self._end = min(self._block_end, cut_position)
        self._eos = None if ignore_eos else eos_token_id
        self._tokens: dict[int, int] = {}
        self._frontier = block_start_position
        self._stopped = False
        self.complete = False

    def reveal(self, positions: Sequence[int], tokens: Sequence[int]) -> None:
        """Record newly revealed tokens (parallel sequences, each position of this block and revealed only once)."""
        start, end, known = self._start, self._block_end, self._tokens
        for position, token in zip(positions, tokens, strict=True):
            assert start <= position < end, f"position {position} is not in block at {start}"
            assert position not in known, f"position {position} was revealed before"
            known[position] = token
        self._advance()

    def _advance(self) -> None:
        """Move the frontier (first masked position that matters) and stop at an EOS it passes."""
        frontier, end, known = self._frontier, self._end, self._tokens
        while not self._stopped and frontier < end and frontier in known:
            self._stopped = known[frontier] == self._eos
            frontier += 1
        self._frontier = frontier
        self.complete = self._stopped or frontier == end

    @property
    def finish(self) -> FinishReason | None:
        """Why the request ends with this block; None while the block is incomplete or another block follows."""
        if self._stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.complete and self._block_end >= self._cut else None

    @property
    def masked_count(self) -> int:
        """Masked positions left before min(block end, cut), whether or not an EOS makes them irrelevant."""
        return sum(position not in self._tokens for position in range(self._start, self._end))

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """The block's part of the output so far: revealed from its start without a gap, cut, up to and including EOS.

        Of a complete block that does not finish the request, this is the whole block.
        """
        return tuple(self._tokens[position] for position in range(self._start, self._frontier))
