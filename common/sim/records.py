"""What is written down while a simulated cluster runs: one record per request, and every forward."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from common.core.effects import BlockPlacement
from common.core.ids import RequestId, WorkerId
from common.core.work import StepDelta
from common.errors import Reason
from common.workload.workload import RequestShape

FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One request, seen from its gateway. Times in seconds from the start; sums run over its blocks.

    `queue_s`: from a block's readiness to the forward that prefills it. `decode_s`: from the end of the prefill (or
    the arrival of its K/V) to the block's end. `outcome`: FINISHED, or the reason of its failure; None while it lives.
    """

    shape: RequestShape
    ready_s: float
    first_commit_s: float | None = None
    end_s: float | None = None
    outcome: str | None = None
    ends: int = 0
    blocks: int = 0
    overflow_blocks: int = 0
    attempts: int = 0
    forwards: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    decode_s: float = 0.0
    decode_from_s: float | None = None
    last_step_s: float | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class ForwardRecord:
    """One forward of one worker."""

    start_s: float
    duration_s: float
    decode_tokens: int
    prefill_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Recorder:
    """Everything the report needs. `decode_gaps_s`: time between two published decode steps of one block."""

    requests: dict[RequestId, RequestRecord] = field(default_factory=dict)
    forwards: dict[WorkerId, list[ForwardRecord]] = field(default_factory=dict)
    decode_gaps_s: array[float] = field(default_factory=lambda: array("d"))
    transfers_s: array[float] = field(default_factory=lambda: array("d"))
    core_events: int = 0
    ended: int = 0

    def arrived(self, request_id: RequestId, shape: RequestShape) -> None:
        """A request exists."""
        self.requests[request_id] = RequestRecord(shape=shape, ready_s=shape.arrival_s)

    def prefill_started(self, request_id: RequestId, now: float) -> None:
        """A forward runs the prefill of the request's block. A repeated attempt waits from the last such moment."""
        record = self.requests[request_id]
        record.queue_s += now - record.ready_s
        record.ready_s = now

    def prefilled(self, request_id: RequestId, duration_s: float) -> None:
        """That forward has ended."""
        self.requests[request_id].prefill_s += duration_s

    def decode_began(self, request_id: RequestId, now: float) -> None:
        """A worker holds the block's K/V and decodes."""
        self.requests[request_id].decode_from_s = now

    def published(self, request_id: RequestId, step: StepDelta, now: float) -> None:
        """The client has new tokens."""
        record = self.requests[request_id]
        if record.first_commit_s is None:
            record.first_commit_s = now
        if step.step >= 2 and record.last_step_s is not None:
            self.decode_gaps_s.append(now - record.last_step_s)
        record.last_step_s = now if step.step >= 1 else None

    def committed(self, request_id: RequestId, placement: BlockPlacement, now: float) -> None:
        """A block is done; the next one, if any, is ready."""
        record = self.requests[request_id]
        record.blocks += 1
        record.overflow_blocks += placement.overflow
        record.attempts += placement.attempts
        record.forwards += placement.prefill_forwards + placement.decode_forwards
        if placement.transfer_bytes:
            record.transfer_s += placement.transfer_exposed_s
            self.transfers_s.append(placement.transfer_exposed_s)
        if record.decode_from_s is not None:
            record.decode_s += now - record.decode_from_s
        record.decode_from_s = record.last_step_s = None
        record.ready_s = now

    def ended_with(self, request_id: RequestId, reason: Reason | None, now: float) -> None:
        """The request's one end (`reason` None: it finished). A second one is counted, and is a fault of the core."""
        record = self.requests[request_id]
        record.ends += 1
        if record.ends == 1:
            record.end_s = now
            record.outcome = FINISHED if reason is None else reason.value
            self.ended += 1

    def ran(self, worker_id: WorkerId, forward: ForwardRecord) -> None:
        """A forward was run."""
        self.forwards.setdefault(worker_id, []).append(forward)
