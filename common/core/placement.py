"""Placement policies: pure functions that choose one worker among candidates. The caller filters and reserves.

A policy never looks at anything but its arguments, and ties end at the worker id, so replays are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from common.core.cluster import WorkerSpec
from common.core.ids import WorkerId


class WorkerLoad(Protocol):
    """What a policy may know of a worker; `WorkerAccount` and `WorkerView` both say it."""

    @property
    def spec(self) -> WorkerSpec:
        """What it registered."""
        ...

    @property
    def pages_free(self) -> int:
        """Pages not reserved."""
        ...

    @property
    def outstanding_prefill_tokens(self) -> int:
        """Canvas tokens of prefills placed there and not finished."""
        ...

    @property
    def active_decodes(self) -> int:
        """Decode calls there."""
        ...


W = TypeVar("W", bound=WorkerLoad)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNeed:
    """What is to be placed. `prefill_worker_id` is where its K/V lies, if anywhere; `turn` counts placements made."""

    canvas_tokens: int
    block_length_tokens: int
    prefill_worker_id: WorkerId | None
    turn: int


def with_pages(workers: Iterable[W], canvas_tokens: int) -> list[W]:
    """Workers with enough free pages for the canvas."""
    return [worker for worker in workers if worker.spec.pages_for(canvas_tokens) <= worker.pages_free]


def under_threshold(workers: Iterable[W], threshold_tokens: int) -> list[W]:
    """Workers with fewer outstanding prefill tokens than the threshold θ."""
    return [worker for worker in workers if worker.outstanding_prefill_tokens < threshold_tokens]


def least_outstanding_tokens(candidates: Sequence[W], need: BlockNeed) -> W | None:
    """Fewest outstanding prefill tokens; then most free pages; then worker id."""
    return min(
        candidates,
        key=lambda worker: (worker.outstanding_prefill_tokens, -worker.pages_free, worker.spec.life),
        default=None,
    )


def max_free_pages(candidates: Sequence[W], need: BlockNeed) -> W | None:
    """Most free pages; then worker id."""
    return min(candidates, key=lambda worker: (-worker.pages_free, worker.spec.life), default=None)


# The tables hold policies of any worker type; `choose` gives the type back.
Policy = Callable[[Sequence[WorkerLoad], BlockNeed], WorkerLoad | None]

PREFILL_POLICIES: dict[str, Policy] = {"least_outstanding_tokens": least_outstanding_tokens}
DECODE_POLICIES: dict[str, Policy] = {"max_free_pages": max_free_pages}
COLOCATED_POLICIES: dict[str, Policy] = {
    "least_outstanding_tokens": least_outstanding_tokens,
    "max_free_pages": max_free_pages,
}
