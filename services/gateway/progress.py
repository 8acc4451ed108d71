"""What the gateway knows of one live request: all it takes to show it, to account for it, and to begin it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from common.committed import CommittedStream, CommittedText, CommittedTokens, Reveal, TextSink
from common.core.work import RequestSpec, StepDelta
from common.metrics.catalogue import REPLAY_DIVERGENCE
from sangam.v1 import types_pb2


class RequestProgress:
    """Committed text, seen tokens and block placements of one request, over all its Schedule calls."""

    def __init__(self, *, spec: RequestSpec, eos_token_id: int, text: TextSink) -> None:
        """`spec` is the request as the client asked for it; `eos_token_id` counts unless the spec ignores it."""
        self.spec = spec
        self._eos_token_id = eos_token_id
        self._stream = CommittedStream(tokens=CommittedTokens.of(spec, eos_token_id=eos_token_id), text=text)
        self._carried_blocks = 0
        self._last_step: dict[int, int] = {}
        self._placements: dict[int, types_pb2.BlockPlacement] = {}
        self._lost_attempts = 0
        self._open_block: int | None = None
        self._call_brought_tokens = False
        self.carried_tokens = 0
        """Tokens that came from the client, not from the scheduler."""

    @property
    def committed(self) -> CommittedTokens:
        """The committed tokens."""
        return self._stream.tokens

    @property
    def complete(self) -> bool:
        """True when the text cannot grow any more."""
        return self.committed.finish is not None

    def carry(self, token_ids: Sequence[int]) -> CommittedText | None:
        """Begin with the first tokens of the request as its client has them; they need not be computed again.

        Whole blocks are taken, and a last one that is cut short: of any other, what is missing depends on the steps
        that revealed the rest. Returns what was taken.
        """
        tokens = CommittedTokens.of(self.spec, eos_token_id=self._eos_token_id)
        tokens.reveal(range(len(token_ids)), token_ids)
        whole = tokens.finish is not None
        taken = tokens.token_ids if whole else tokens.whole_blocks(self.spec.block_length_tokens)
        text, _ = self._stream.reveal(range(len(taken)), taken)
        self.carried_tokens, self._carried_blocks = len(taken), self._blocks_done()
        return text

    def step(self, block: int, delta: StepDelta) -> tuple[CommittedText | None, Reveal]:
        """Take newly revealed tokens; tokens already seen stay as they were."""
        self._last_step[block] = max(delta.step, self._last_step.get(block, 0))
        self._open_block = block
        self._call_brought_tokens = True
        before = self.committed.divergences
        seen = self._stream.reveal(delta.positions, delta.token_ids)
        REPLAY_DIVERGENCE.add(self.committed.divergences - before)
        return seen

    def block_committed(self, placement: types_pb2.BlockPlacement) -> None:
        """Note where a finished block ran."""
        self._placements[placement.block] = placement
        self._open_block = None

    def call_broken(self) -> bool:
        """A Schedule call ended early, and its open block's attempt with it. True when it had brought tokens."""
        if self._open_block is not None and self._open_block >= self._blocks_done():
            self._lost_attempts += 1
            del self._last_step[self._open_block]
        self._open_block = None
        brought_tokens, self._call_brought_tokens = self._call_brought_tokens, False
        return brought_tokens

    def spec_to_resume(self) -> RequestSpec:
        """The request with everything already seen pinned: whole blocks as committed, the open block's as shown."""
        length = self.spec.block_length_tokens
        whole = self.committed.whole_blocks(length)
        shown = self.committed.shown_in_block(len(whole) // length, length)
        return dataclasses.replace(self.spec, committed_token_ids=whole, shown=shown)

    def placements(self) -> list[types_pb2.BlockPlacement]:
        """Where each block ran, in order, without those that the client brought along.

        A block whose report was lost with its scheduler has no worker names.
        """
        for block in range(self._carried_blocks, self._blocks_done()):
            if block not in self._placements:
                steps = self._last_step.get(block, 0)
                self._placements[block] = types_pb2.BlockPlacement(
                    block=block, prefill_forwards=1, decode_forwards=steps, attempts=1
                )
        return [self._placements[block] for block in sorted(self._placements)]

    def usage_counts(self) -> dict[str, int]:
        """Forwards and attempts over all blocks, by the field names of `Usage`."""
        placements = self.placements()
        return {
            "prefill_forwards": sum(placement.prefill_forwards for placement in placements),
            "decode_forwards": sum(placement.decode_forwards for placement in placements),
            "attempts": sum(placement.attempts for placement in placements) + self._lost_attempts,
        }

    def _blocks_done(self) -> int:
        """Blocks with nothing left to commit; the last one of a complete request may be cut short."""
        whole, rest = divmod(self.committed.count_tokens, self.spec.block_length_tokens)
        return whole + (self.complete and rest > 0)
