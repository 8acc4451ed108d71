"""A cluster that exists only on paper: what workers hold, how far calls have come, what requests are owed.

Shares no code with the scheduler's policy; `tests.core.scheduler_oracle` judges the core by it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from common.core import effects as fx
from common.core import events as ev
from common.core.block_cost import NO_TRANSFER
from common.core.cluster import WorkerSpec
from common.core.ids import BlockAttempt, RequestId, Role, ServingMode, WorkerLife
from common.core.options import Dispatch, QueueOrder
from common.core.params import CacheMode
from common.core.scheduler_config import SchedulerConfig
from common.core.work import (
    BlockCompletion,
    BlockWork,
    FinishReason,
    IterationReport,
    KvHandle,
    KvSource,
    LocalPrefill,
    RemoteKv,
    RequestSpec,
    StepDelta,
)
from common.errors import Reason
from tests.core.samples import delta
from tests.core.violation import require

LEASE_S = 5.0
WAITING, PREFILLING, READY, DECODING = "waiting", "prefilling", "ready", "decoding"


@dataclass
class PaperCall:
    """A call that the core believes to run, and how far the worker has come."""

    effect: fx.CallPrefill | fx.CallDecode
    revealed: set[int]
    step: int
    kv_received: bool = False

    @property
    def work(self) -> BlockWork:
        return self.effect.work

    @property
    def source(self) -> KvSource | None:
        return self.effect.source if isinstance(self.effect, fx.CallDecode) else None

    @property
    def prefills(self) -> bool:
        """Whether its prefill is still outstanding."""
        return isinstance(self.effect, fx.CallPrefill) or (isinstance(self.source, LocalPrefill) and self.step == 0)


@dataclass
class PaperRequest:
    """What must be true of one request."""

    spec: RequestSpec
    key: tuple[float, str]
    canvas: int
    since: float
    deadline_at: float | None
    phase: str = WAITING
    block: int = 0
    attempt: int = 0
    renamed: int = 0
    shown: dict[int, int] = field(default_factory=dict)
    call_id: int | None = None
    reader_id: int | None = None
    read_early: bool = False
    kv: KvHandle | None = None
    lease_end: float = float("inf")
    first: StepDelta | None = None
    committing: BlockCompletion | None = None
    may_fail: Reason | None = None
    end: fx.FinishRequest | fx.FailRequest | None = None

    @property
    def now_trying(self) -> BlockAttempt:
        return BlockAttempt(self.spec.request_id, self.block, self.attempt)

    @property
    def tries(self) -> int:
        """Tries at the block, this one included."""
        return self.attempt - self.renamed + 1

    @property
    def rest(self) -> int:
        """Blocks that are not committed."""
        return -(-self.spec.max_tokens // self.spec.block_length_tokens) - self.block

    @property
    def positions(self) -> range:
        length = self.spec.block_length_tokens
        return range(self.block * length, (self.block + 1) * length)


class PaperCluster:
    """Own account of workers, calls and requests, and the arithmetic of who has room."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.now = 0.0
        self.workers: dict[WorkerLife, WorkerSpec] = {}
        self.wants: dict[WorkerLife, IterationReport] = {}
        self.draining: set[WorkerLife] = set()
        self.newest: dict[str, int] = {}
        self.requests: dict[RequestId, PaperRequest] = {}
        self.calls: dict[int, PaperCall] = {}
        self.kept: dict[tuple[WorkerLife, BlockAttempt], int] = {}
        self.shy_until: dict[WorkerLife, float] = {}

    # What workers do

    def finish_prefill(self, call: PaperCall, rng: random.Random) -> ev.PrefillCompleted:
        """The prefill ran; K/V stays at the owner unless the block is complete or needs none."""
        request = self.requests[call.work.attempt.request_id]
        first = self.step(call, rng)
        completion = self.finished(call, rng, forwards=0)
        kv = None
        self.close(call.effect.call_id)
        if completion is not None:
            request.committing = completion
        else:
            request.phase, request.first = READY, first
            if call.work.cache_mode is not CacheMode.NONE:
                kv = self.handle(call)
                self.kept[(kv.owner, kv.attempt)] = kv.pages
                request.kv, request.lease_end = kv, self.now + kv.lease_s
        return ev.PrefillCompleted(call_id=call.effect.call_id, first=first, kv=kv, completion=completion)

    def handle(self, call: PaperCall) -> KvHandle:
        """What the owner says of the K/V that this prefill left."""
        spec = self.workers[call.effect.target]
        canvas = call.work.canvas_tokens
        return KvHandle(
            attempt=call.work.attempt,
            owner=spec.life,
            transport="tcp",
            address=spec.kv_address,
            layout_fingerprint=spec.layout_fingerprint,
            canvas_tokens=canvas,
            pages=spec.pages_for(canvas),
            lease_s=LEASE_S,
        )

    def step(self, call: PaperCall, rng: random.Random) -> StepDelta:
        """One forward reveals some masked positions."""
        start = call.work.block_start_position
        masked = [p for p in range(start, start + call.work.block_length_tokens) if p not in call.revealed]
        chosen = rng.sample(masked, rng.randint(1, len(masked)))
        call.revealed.update(chosen)
        call.step += 1
        return delta(call.work.attempt.request_id, call.step - 1, chosen)

    def finished(self, call: PaperCall, rng: random.Random, *, forwards: int = 1) -> BlockCompletion | None:
        """The completion, if the block is complete or an end-of-text came up; else None."""
        work = call.work
        start, length = work.block_start_position, work.block_length_tokens
        last = start + length >= work.max_tokens
        complete = all(p in call.revealed for p in range(start, min(start + length, work.max_tokens)))
        stops = bool(call.revealed) and call.step > 0 and rng.random() < 0.05
        if not complete and not stops:
            return None
        finish = FinishReason.STOP if stops else FinishReason.LENGTH if last else None
        return BlockCompletion(prefill_forwards=1, decode_forwards=forwards, finish=finish)

    def got_kv(self, call: PaperCall) -> None:
        """The decode worker has the K/V: the owner's pages are free."""
        call.kv_received = True
        if isinstance(call.source, RemoteKv):
            self.kept.pop((call.source.handle.owner, call.source.handle.attempt), None)
            self.requests[call.work.attempt.request_id].kv = None

    def late_answers(self, call: PaperCall) -> list[ev.SchedulerEvent]:
        """What may still arrive of a call that was cancelled."""
        call_id = call.effect.call_id
        if isinstance(call.effect, fx.CallPrefill):
            if call.effect.target not in self.workers:
                return []
            first = delta(call.work.attempt.request_id, 0, [call.work.block_start_position])
            return [ev.PrefillCompleted(call_id=call_id, first=first, kv=self.handle(call), completion=None)]
        done = BlockCompletion(prefill_forwards=1, decode_forwards=1, finish=FinishReason.STOP)
        events: list[ev.SchedulerEvent] = [
            ev.DecodeCompleted(call_id=call_id, completion=done),
            ev.DecodeKvReceived(call_id=call_id, transfer=NO_TRANSFER, first=None),
            ev.CallFailed(call_id=call_id, reason=Reason.PEER_LOST),
        ]
        return [random.Random(int(call_id)).choice(events)]

    def shy_from(self, call: PaperCall) -> None:
        """It broke: who had a part in it may be left alone for a while."""
        lives = [call.effect.target, *([call.source.handle.owner] if isinstance(call.source, RemoteKv) else [])]
        self.shy_until.update(dict.fromkeys(lives, self.now + 2.5))

    # What must follow

    def bury(self, life: WorkerLife) -> None:
        """A life is over, and with it its calls and the K/V it kept."""
        del self.workers[life]
        self.draining.discard(life)
        for key in [key for key in self.kept if key[0] == life]:
            del self.kept[key]
        for request in self.requests.values():
            call = None if request.call_id is None else self.calls[request.call_id]
            on_it = call is not None and call.effect.target == life
            if on_it or (request.phase == READY and request.kv is not None and request.kv.owner == life):
                self.expect_retry(request)

    def expect_retry(self, request: PaperRequest) -> None:
        """The attempt is lost: the next one must start at the prefill."""
        request.phase, request.first, request.kv, request.lease_end = WAITING, None, None, float("inf")
        request.since = self.now
        request.attempt += 1
        request.read_early = False
        if request.tries > self.config.max_attempts:
            request.may_fail = Reason.ATTEMPTS_EXHAUSTED

    def expect_other_prefill(self, request: PaperRequest) -> None:
        """The prefill was refused: the same try goes on, but who was to read it early may not hear of it again."""
        request.phase, request.since, request.read_early = WAITING, self.now, False
        if request.reader_id is not None:
            request.attempt += 1
            request.renamed += 1

    def close(self, call_id: int) -> None:
        """The call has ended by itself."""
        call = self.calls.pop(call_id)
        self.requests[call.work.attempt.request_id].call_id = None

    # Own arithmetic

    def goes_before(self, one: PaperRequest, other: PaperRequest) -> bool:
        """Whether the waiting block of `one` must be placed before that of `other`. Tenants share: no order there."""
        if one.spec.tenant != other.spec.tenant:
            return False
        patience = self.config.max_queue_wait_s
        shortest = self.config.queue_order is QueueOrder.FEWEST_REMAINING_BLOCKS

        def rank(request: PaperRequest) -> tuple[int, int, tuple[float, str]]:
            return -request.spec.priority, request.rest if shortest else 0, request.key

        overdue, too = (request.since + patience <= self.now for request in (one, other))
        if overdue and one.key < other.key:
            return True
        # Only an older overdue block excuses passing a better ranked one.
        return rank(one) < rank(other) and not too

    def free(self, life: WorkerLife) -> int:
        """Pages that no call and no kept K/V uses."""
        spec = self.workers[life]
        used = sum(spec.pages_for(c.work.canvas_tokens) for c in self.calls.values() if c.effect.target == life)
        return spec.pages_total - used - sum(pages for (owner, _), pages in self.kept.items() if owner == life)

    def outstanding(self, life: WorkerLife) -> int:
        """Canvas tokens of prefills that have not run."""
        return sum(c.work.canvas_tokens for c in self.calls.values() if c.effect.target == life and c.prefills)

    def blocks_at(self, life: WorkerLife) -> int:
        """Calls there."""
        return sum(c.effect.target == life for c in self.calls.values())

    def outstanding_count(self, life: WorkerLife) -> int:
        """Prefills that have not run."""
        return sum(c.effect.target == life and c.prefills for c in self.calls.values())

    def fresh(self, spec: WorkerSpec) -> float:
        """What an iteration leaves for prefills there, in tokens; a prefill worker saves up for nothing."""
        if spec.role is Role.PREFILL:
            return float("inf")
        here = [c for c in self.calls.values() if c.effect.target == spec.life and isinstance(c.effect, fx.CallDecode)]
        tau = spec.token_budget_tokens
        return max(tau - sum(c.work.decode_step_tokens() for c in here), tau // 8, 1)

    def willing(self, role: Role) -> list[WorkerSpec]:
        """Live workers of that role that do not drain."""
        return [s for life, s in self.workers.items() if s.role is role and life not in self.draining]

    def has_room(self, spec: WorkerSpec, canvas: int) -> bool:
        """Whether the worker surely could take the canvas now."""
        rested = self.shy_until.get(spec.life, 0.0) <= self.now
        return rested and spec.pages_for(canvas) <= self.free(spec.life)

    def may_prefill(self, spec: WorkerSpec) -> bool:
        """Whether binding another prefill to it is surely right: late, or when it says what it wants, only while it
        has none; the latter gets no more blocks than that.
        """
        said = self.wants.get(spec.life)
        if said is not None and said.wanted_blocks:
            return self.blocks_at(spec.life) < said.wanted_blocks and self.outstanding(spec.life) == 0
        return self.config.dispatch is Dispatch.EAGER or self.outstanding(spec.life) == 0

    def canvas_of(self, spec: RequestSpec) -> int:
        """Prompt and whole blocks, of which every request may get as many as the longest."""
        length = spec.block_length_tokens
        generated = -(-max(spec.max_tokens, self.config.max_gen_len_tokens) // length) * length
        return len(spec.prompt_token_ids) + generated

    def open_prefillers(self, canvas: int) -> list[WorkerSpec]:
        """Prefill workers that surely could take it now."""
        theta = self.config.overload_threshold_tokens if self.config.mode is ServingMode.HYBRID else 1 << 60
        prefillers = self.willing(Role.PREFILL)
        able = [s for s in prefillers if self.has_room(s, canvas) and self.may_prefill(s)]
        return [s for s in able if self.outstanding(s.life) < theta]

    def longest(self) -> int | None:
        """Longest canvas anyone could serve; None while nobody serves."""
        readers = [spec.pool_tokens for spec in self.willing(Role.DECODE)]
        writers = [spec.pool_tokens for spec in self.willing(Role.PREFILL)]
        if not readers:
            return None
        overflows = self.config.mode is ServingMode.HYBRID and self.config.overflow_enabled
        if self.config.mode is ServingMode.COLOCATED or overflows:
            return max(readers)
        return min(max(readers), max(writers)) if writers else None

    def fits(self, spec: RequestSpec) -> bool:
        """Whether anyone could serve it."""
        longest = self.longest()
        return longest is not None and self.canvas_of(spec) <= longest

    def judge_progress(self) -> None:
        """No worker that surely has room stays idle while the head of a line could use it."""
        ready = min((r for r in self.requests.values() if r.phase == READY), key=lambda r: r.key, default=None)
        if ready is not None:
            room = [s for s in self.willing(Role.DECODE) if self.has_room(s, ready.canvas)]
            require(not room, f"{ready.key} waits for decode although {room} has room")
        waiting = [r for r in self.requests.values() if r.phase == WAITING and self.fits(r.spec)]
        if not waiting:
            return
        # Whoever is the head now, it needs no more room than the largest that waits.
        canvas = max(request.canvas for request in waiting)
        if self.config.mode is ServingMode.COLOCATED:
            readers = [spec for spec in self.willing(Role.DECODE) if self.may_prefill(spec)]
            room = [spec for spec in readers if self.has_room(spec, canvas)]
        else:
            room = self.open_prefillers(canvas) if self.willing(Role.DECODE) else []
        require(not room, f"{[r.key for r in waiting]} wait although {room} has room")

    def judge_binding(self, effect: fx.CallPrefill | fx.CallDecode) -> None:
        """Late: a worker that has prefills outstanding is not bound to more than it takes in the turns ahead, unless it
        saves up for its only one for longer than that.
        """
        already, said = self.outstanding(effect.target), self.wants.get(effect.target)
        if said is not None and said.wanted_blocks:
            require(self.blocks_at(effect.target) < said.wanted_blocks, "more blocks than it wants")
            together = already + effect.work.canvas_tokens <= said.wanted_prefill_tokens
            require(already == 0 or together, "more prefills than it wants")
            return
        if self.config.dispatch is Dispatch.EAGER or already == 0:
            return
        spec, ahead = self.workers[effect.target], self.config.dispatch_ahead
        turn = spec.max_prefill_tokens_per_batch if spec.role is Role.PREFILL else spec.token_budget_tokens
        saves_up = self.outstanding_count(effect.target) == 1 and already > ahead * self.fresh(spec)
        require(already + effect.work.canvas_tokens <= ahead * turn or saves_up, "bound too early")

    def judge_overflow(self, effect: fx.CallDecode) -> None:
        """A local prefill on a decode worker: only when there is no other way, and at nobody's expense."""
        require(self.config.mode is ServingMode.HYBRID and self.config.overflow_enabled, "overflow is off")
        canvas = effect.work.canvas_tokens
        require(self.outstanding(effect.target) < self.config.overload_threshold_tokens, "overflow over threshold")
        require(not self.open_prefillers(canvas), "overflow although a prefill worker has room")
        readers = self.willing(Role.DECODE)
        waiting = sum(readers[0].pages_for(r.canvas) for r in self.requests.values() if r.phase == READY)
        free = sum(self.free(spec.life) for spec in readers)
        require(free - waiting >= readers[0].pages_for(canvas), "overflow takes what finished prefills wait for")
