"""What `sangam generate` reports of a finished request: the same for the services and for `--local`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

SAME = "yes"
"""The verdict on an output that equals another in everything but times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReport:
    """Where one block ran and what it cost; durations in seconds, as in `BlockPlacement` of the protos."""

    block: int
    prefill_worker_id: str
    decode_worker_id: str
    overflow: bool
    prefill_forwards: int
    decode_forwards: int
    attempts: int
    queue_s: float
    prefill_s: float
    transfer_s: float
    transfer_bytes: int
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOutput:
    """A finished request. `token_ids` are the generated ones only, up to and including an end-of-text token.

    `time_to_first_commit_s` and `total_s` count from admission. `carried_tokens` are those of blocks that ran before
    the gateway that finished the request was there; forwards, attempts and blocks are without theirs.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    seed: int
    cache_mode: str
    prompt_tokens: int
    prefill_forwards: int
    decode_forwards: int
    attempts: int
    carried_tokens: int
    time_to_first_commit_s: float
    total_s: float
    blocks: tuple[BlockReport, ...]

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """Every worker that had a part, in order of appearance."""
        named = (name for block in self.blocks for name in (block.prefill_worker_id, block.decode_worker_id))
        return tuple(dict.fromkeys(name for name in named if name))

    def to_json(self) -> str:
        """One JSON object on one line: the fields, `worker_ids`, and the blocks' durations summed up."""
        document = dataclasses.asdict(self)
        blocks = document.pop("blocks")
        document["worker_ids"] = list(self.worker_ids)
        for name in ("queue_s", "prefill_s", "transfer_s", "decode_s"):
            document[name] = sum(getattr(block, name) for block in self.blocks)
        document["blocks"] = blocks
        return json.dumps(document)

    def summary(self) -> str:
        """One line for a person."""
        forwards = self.prefill_forwards + self.decode_forwards
        per_forward = (len(self.token_ids) - self.carried_tokens) / max(1, forwards)
        return (
            f"{len(self.token_ids)} tokens in {self.total_s:.2f} s (first after {self.time_to_first_commit_s:.2f} s), "
            f"finish: {self.finish_reason}, {self.prefill_forwards} prefill + {self.decode_forwards} decode forwards, "
            f"{per_forward:.1f} tokens per forward, {_workers(self.worker_ids)}"
        )


def _workers(worker_ids: Sequence[str]) -> str:
    return f"on {', '.join(worker_ids)}" if worker_ids else "on workers unknown"
