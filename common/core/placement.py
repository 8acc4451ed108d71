"""Placement policies: pure functions that choose one worker of a roster. The caller reserves.

A policy never looks at anything but its arguments, and ties end at the worker id, so replays are exact. Sources:
the paper (arXiv 2607.04206) and reference notes (algorithms, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from common.core.ids import WorkerId
from common.core.roster import NOBODY, Rank, Roster, W, WorkerLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNeed:
    """What is to be placed, and what the policies may weigh.

    `near_domain` is the link domain to stay close to: of the worker that holds the K/V (decode), or that had the
    request's block before (prefill); "" when there is none. `previous_worker_id` got the last placement of this kind.
    `topology_alpha` and `length_slack` tune the policies of those names.
    """

    canvas_tokens: int
    near_domain: str = ""
    previous_worker_id: WorkerId | None = None
    barred: frozenset[WorkerId] = NOBODY
    topology_alpha: float
    length_slack: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a roster ranks workers (smallest first) and how one of them is picked; None: nobody has room."""

    rank: Callable[[WorkerLoad], Rank]
    pick: Callable[[Roster[Any], BlockNeed], Any]
    by_domain: bool = False


def by_outstanding_tokens(worker: WorkerLoad) -> Rank:
    """Fewest outstanding prefill tokens, then most free pages."""
    return worker.outstanding_prefill_tokens, -worker.pages_free


def by_requests(worker: WorkerLoad) -> Rank:
    """Fewest blocks in its hands, then most free pages."""
    return worker.live_blocks, -worker.pages_free


def by_length_sum(worker: WorkerLoad) -> Rank:
    """Smallest sum of the canvases in its hands, then most free pages."""
    return worker.length_sum_tokens, -worker.pages_free


def by_free_pages(worker: WorkerLoad) -> Rank:
    """Most free pages."""
    return (-worker.pages_free,)


def by_id(worker: WorkerLoad) -> Rank:
    """Order of worker ids alone."""
    return ()


def pick_best(roster: Roster[W], need: BlockNeed) -> W | None:
    """First by rank."""
    return roster.best(need.canvas_tokens, need.barred)


def pick_next(roster: Roster[W], need: BlockNeed) -> W | None:
    """Each in turn."""
    return roster.following(need.previous_worker_id, need.canvas_tokens, need.barred)


def pick_near(roster: Roster[W], need: BlockNeed) -> W | None:
    """The roomiest worker on a fast link, if its free pages are at least alpha times the roomiest one's; else that."""
    best = roster.best(need.canvas_tokens, need.barred)
    group = roster.group(need.near_domain)
    near = None if group is None else group.best(need.canvas_tokens, need.barred)
    if best is None or near is None:
        return best
    return near if _free_tokens(near) >= need.topology_alpha * _free_tokens(best) else best


def pick_similar(roster: Roster[W], need: BlockNeed) -> W | None:
    """Of workers whose length sum with this canvas is within (1 + slack) of the smallest: nearest mean length.

    Batches of similar lengths waste least. An idle worker counts as a perfect match. Looks at every worker with room.
    """
    able = roster.with_room(need.canvas_tokens, need.barred)
    if not able:
        return None
    smallest = min(worker.length_sum_tokens for worker in able) + need.canvas_tokens
    limit = smallest * (1.0 + need.length_slack)
    balanced = [worker for worker in able if worker.length_sum_tokens + need.canvas_tokens <= limit]

    def distance(worker: W) -> Rank:
        blocks = worker.live_blocks
        mean = worker.length_sum_tokens / blocks if blocks else need.canvas_tokens
        return abs(mean - need.canvas_tokens), worker.length_sum_tokens

    return min(balanced, key=distance)


def _free_tokens(worker: WorkerLoad) -> int:
    return worker.pages_free * worker.spec.page_size_tokens


LEAST_OUTSTANDING_TOKENS = Policy(rank=by_outstanding_tokens, pick=pick_best)

_OF_PREFILLS = {
    "least_outstanding_tokens": LEAST_OUTSTANDING_TOKENS,
    "least_outstanding_requests": Policy(rank=by_requests, pick=pick_best),
    "least_length_sum": Policy(rank=by_length_sum, pick=pick_best),
    "round_robin": Policy(rank=by_id, pick=pick_next),
}
_OF_DECODES = {
    "max_free_pages": Policy(rank=by_free_pages, pick=pick_best),
    "round_robin": Policy(rank=by_id, pick=pick_next),
    "topology_guarded": Policy(rank=by_free_pages, pick=pick_near, by_domain=True),
    "balanced_length": Policy(rank=by_id, pick=pick_similar),
}

PREFILL_POLICIES: Mapping[str, Policy] = MappingProxyType(_OF_PREFILLS)
DECODE_POLICIES: Mapping[str, Policy] = MappingProxyType(_OF_DECODES)
COLOCATED_POLICIES: Mapping[str, Policy] = MappingProxyType({**_OF_PREFILLS, **_OF_DECODES})
