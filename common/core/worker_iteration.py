"""One forward's batch, as the worker core remembers it until its outcome arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.core.ids import BlockAttempt
from common.core.worker_block import WorkerBlock
from common.core.worker_effects import RunIteration


@dataclass(slots=True, kw_only=True, eq=False)
class Iteration:
    """Batch number `number` (from 1): decodes first, then whole prefills, with their query tokens."""

    number: int
    decodes: tuple[BlockAttempt, ...]
    prefills: tuple[BlockAttempt, ...]
    decode_tokens: int
    prefill_tokens: int

    @classmethod
    def of(
        cls,
        number: int,
        decodes: Sequence[WorkerBlock],
        prefills: Sequence[WorkerBlock],
        decode_tokens: int,
        prefill_tokens: int,
    ) -> Iteration:
        """The batch of these blocks."""
        return cls(
            number=number,
            decodes=tuple([block.attempt for block in decodes]),
            prefills=tuple([block.attempt for block in prefills]),
            decode_tokens=decode_tokens,
            prefill_tokens=prefill_tokens,
        )

    @property
    def attempts(self) -> tuple[BlockAttempt, ...]:
        """Every attempt in batch order."""
        return self.decodes + self.prefills

    @property
    def command(self) -> RunIteration:
        """The effect that runs it."""
        return RunIteration(iteration=self.number, decodes=self.decodes, prefills=self.prefills)


NO_ITERATION = Iteration(number=0, decodes=(), prefills=(), decode_tokens=0, prefill_tokens=0)
