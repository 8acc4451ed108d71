"""Living requests and the lines they stand in: for a prefill, for decode memory early or late, or parked."""

from __future__ import annotations

from common.core.ids import RequestId
from common.core.keyed_heap import KeyedHeap
from common.core.options import QueueOrder
from common.core.request import BlockState, Request, RequestState
from common.core.scheduler_config import SchedulerConfig
from common.core.waiting_line import Waiter, WaitingLine
from common.core.work import RequestSpec, WaitReason

QueueKey = tuple[float, RequestId]


class RequestBook:
    """Every living request, each in at most one line. Nothing of an ended request stays.

    The line for decode memory is ordered by (first submit time, id); the prefill line is a `WaitingLine`, within a
    tenant by priority, then as `queue_order` says: by default older requests' next blocks outrank newcomers.

    Idle requests stand in lines of their own, oldest first, and are at the head only while no other request waits in
    any line but that of the parked, whom no live worker can hold. No tenant's share, limit or backlog counts them.

    One more line is for blocks that have left the others: their prefill runs, and they may choose their decode worker.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._order = config.queue_order
        self._requests: dict[RequestId, Request] = {}
        self._prefill_line = WaitingLine(
            quantum_tokens=config.tenant_quantum_tokens,
            weights=config.tenant_weights,
            max_wait_s=config.max_queue_wait_s,
        )
        self._decode_line: KeyedHeap[RequestId, QueueKey] = KeyedHeap()
        self._idle_prefill_line: KeyedHeap[RequestId, QueueKey] = KeyedHeap()
        self._idle_decode_line: KeyedHeap[RequestId, QueueKey] = KeyedHeap()
        self._early_line: KeyedHeap[RequestId, QueueKey] = KeyedHeap()
        self._parked: dict[RequestId, None] = {}
        self._backlog: dict[RequestId, int] = {}
        self._backlog_tokens = 0
        self._unplaced = 0
        self._ended = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._requests

    @property
    def request_ids(self) -> frozenset[RequestId]:
        """Every living request."""
        return frozenset(self._requests)

    @property
    def queued_blocks(self) -> int:
        """Blocks waiting for a prefill, parked ones included, idle ones not."""
        return len(self._prefill_line) + len(self._parked)

    @property
    def parked_blocks(self) -> int:
        """Blocks that fit no live worker."""
        return len(self._parked)

    @property
    def waiting_decode_blocks(self) -> int:
        """Prefilled blocks waiting for decode memory, idle ones not."""
        return len(self._decode_line)

    @property
    def waiting_idle_blocks(self) -> int:
        """Blocks of idle requests that wait for either."""
        return len(self._idle_prefill_line) + len(self._idle_decode_line)

    @property
    def somebody_waits(self) -> bool:
        """Whether any line has a head; the parked have none."""
        busy = self._prefill_line or self._decode_line or self._early_line
        return bool(busy or self._idle_prefill_line or self._idle_decode_line)

    @property
    def backlog_tokens(self) -> int:
        """Decode memory that those wait for, page-rounded."""
        return self._backlog_tokens

    def waiting_like(self, spec: RequestSpec) -> int:
        """What waits already and counts against room for `spec`: requests never placed, or blocks of idle ones."""
        return self.waiting_idle_blocks if spec.idle else self._unplaced

    @property
    def ended_requests(self) -> int:
        """Requests that ended, well or badly, since the start."""
        return self._ended

    def unservable(self, canvas_limit_tokens: int | None) -> dict[RequestId, WaitReason]:
        """Requests that wait for a worker that is not there; the limit is that of the live ones, None without any."""
        if canvas_limit_tokens is not None:
            return dict.fromkeys(self._parked, WaitReason.TOO_LARGE)
        states = (BlockState.WAITING_PREFILL, BlockState.KV_READY)
        waiting = (request.id for request in self._requests.values() if request.block_state in states)
        return dict.fromkeys(waiting, WaitReason.NO_WORKER)

    def get(self, request_id: RequestId) -> Request | None:
        """The living request of that id."""
        return self._requests.get(request_id)

    def open(self, request: Request) -> None:
        """A new request joins the prefill line."""
        assert request.id not in self._requests, request.id
        self._requests[request.id] = request
        self._unplaced += not request.spec.idle
        self.wait_prefill(request)

    def close(self, request: Request, end: RequestState, now: float) -> None:
        """The request is over; it is forgotten."""
        self.leave_lines(request)
        if request.state is RequestState.QUEUED:
            self._unplaced -= not request.spec.idle
        request.move_request(end, now)
        del self._requests[request.id]
        self._ended += 1

    def mark_running(self, request: Request, now: float) -> None:
        """The request is placed for the first time (later calls do nothing)."""
        if request.state is RequestState.QUEUED:
            request.move_request(RequestState.RUNNING, now)
            self._unplaced -= not request.spec.idle

    def wait_prefill(self, request: Request) -> None:
        """Join the prefill line, at the place its age gives it."""
        assert request.block_state is BlockState.WAITING_PREFILL, request.id
        spec = request.spec
        if spec.idle:
            self._idle_prefill_line.push(request.id, request.queue_key)
            return
        shortest_first = self._order is QueueOrder.FEWEST_REMAINING_BLOCKS
        rank = (-spec.priority, spec.blocks - request.block) if shortest_first else (-spec.priority,)
        self._prefill_line.push(
            Waiter(
                request_id=request.id,
                tenant=spec.tenant,
                canvas_tokens=request.canvas_tokens,
                rank=rank,
                age=request.queue_key,
                since_s=request.cost.ready_s,
            )
        )

    def wait_decode(self, request: Request) -> None:
        """Join the line for decode memory."""
        assert request.prefilled is not None and request.id not in self._backlog, request.id
        if request.spec.idle:
            self._idle_decode_line.push(request.id, request.queue_key)
            return
        self._decode_line.push(request.id, request.queue_key)
        tokens = request.prefilled.page_rounded_tokens(request.canvas_tokens)
        self._backlog[request.id] = tokens
        self._backlog_tokens += tokens

    def wait_reader(self, request: Request) -> None:
        """Its prefill is about to run: it may choose its decode worker."""
        assert request.reader is None, request.id
        self._early_line.push(request.id, request.queue_key)

    def leave_early_line(self, request: Request) -> None:
        """It has chosen, or its prefill has ended."""
        self._early_line.discard(request.id)

    def park(self, request: Request) -> None:
        """Step out of the prefill line without losing the place."""
        self._prefill_line.discard(request.id)
        self._parked[request.id] = None

    def unpark(self, canvas_limit_tokens: int) -> None:
        """Parked requests that fit now rejoin the prefill line."""
        for request_id in list(self._parked):
            request = self._requests[request_id]
            if request.canvas_tokens <= canvas_limit_tokens:
                del self._parked[request_id]
                self.wait_prefill(request)

    def leave_lines(self, request: Request, *, placed: bool = False) -> None:
        """Stand in no line; `placed`: because its turn has come."""
        self._prefill_line.discard(request.id, placed=placed)
        self._idle_prefill_line.discard(request.id)
        self._idle_decode_line.discard(request.id)
        self._parked.pop(request.id, None)
        if self._decode_line.discard(request.id):
            self._backlog_tokens -= self._backlog.pop(request.id)

    def prefill_head(self, now: float) -> Request | None:
        """First in the prefill line."""
        head = self._prefill_line.head(now)
        return self._idle_head(self._idle_prefill_line) if head is None else self._requests[head]

    def decode_head(self) -> Request | None:
        """First in the line for decode memory."""
        head = self._decode_line.peek()
        return self._idle_head(self._idle_decode_line) if head is None else self._requests[head[0]]

    def reader_head(self) -> Request | None:
        """First of those that may choose early; None while a finished prefill waits for decode memory."""
        head = None if self._decode_line else self._early_line.peek()
        return None if head is None else self._requests[head[0]]

    def check(self) -> None:
        """Assert that every request stands where its state says."""
        assert self._backlog_tokens == sum(self._backlog.values()) and len(self._backlog) == len(self._decode_line)
        live = [request for request in self._requests.values() if not request.spec.idle]
        assert self._unplaced == sum(request.state is RequestState.QUEUED for request in live)
        for request in self._requests.values():
            prefill_line = self._idle_prefill_line if request.spec.idle else self._prefill_line
            decode_line = self._idle_decode_line if request.spec.idle else self._decode_line
            waits = (request.id in prefill_line) + (request.id in self._parked)
            assert waits == (request.block_state is BlockState.WAITING_PREFILL), request.id
            assert (request.id in decode_line) == (request.block_state is BlockState.KV_READY), request.id
            early = (request.id in self._early_line) + (request.reader is not None)
            assert early <= (request.block_state is BlockState.PREFILLING), request.id
        lines = len(self._prefill_line) + len(self._parked) + len(self._decode_line) + self.waiting_idle_blocks
        assert lines <= len(self._requests), "a line holds someone who is gone"

    def _idle_head(self, line: KeyedHeap[RequestId, QueueKey]) -> Request | None:
        """First in a line of idle blocks, while nobody else waits."""
        head = line.peek()
        return None if head is None or self._prefill_line or self._decode_line else self._requests[head[0]]
