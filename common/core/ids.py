"""The names of things: workers, their lives, requests, block attempts, calls.

Every unit of work carries a `BlockAttempt` and is addressed to a `WorkerLife`; every command the scheduler issues
has a fresh `CallId`. A completion counts only when it answers the newest call of its attempt (design, section 4).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
CallId = NewType("CallId", int)

MAX_TERM = 2**53 - 1
"""Largest term of a scheduler: Redis' scripts, which deal them out, count in doubles."""


class Role(enum.Enum):
    """What a worker process serves."""

    PREFILL = "prefill"
    DECODE = "decode"


class ServingMode(enum.Enum):
    """How prefills and decodes share the workers."""

    COLOCATED = "colocated"
    DISAGGREGATED = "disaggregated"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True, order=True)
class WorkerLife:
    """One process life of one worker; `incarnation` is larger for every later life of the same worker id."""

    worker_id: WorkerId
    incarnation: int


@dataclass(frozen=True, slots=True, order=True)
class BlockAttempt:
    """One try (`attempt`, from 0) at one block (`block`, from 0) of one request."""

    request_id: RequestId
    block: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.request_id}/{self.block}#{self.attempt}"
