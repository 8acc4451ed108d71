"""One request's life: the table of lawful moves, and the record the scheduler keeps while it lives.

QUEUED ─▶ RUNNING ─▶ FINISHED | FAILED | CANCELLED, and per block inside RUNNING:
WAITING_PREFILL ─▶ PREFILLING ─▶ KV_READY ─▶ TRANSFERRING ─▶ DECODING ─▶ COMMITTED ─▶ next block | done
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field, replace

from common.core.block_cost import BlockCost
from common.core.cluster import WorkerSpec
from common.core.ids import BlockAttempt, CallId, RequestId, WorkerLife
from common.core.params import CacheMode
from common.core.work import BlockCompletion, BlockWork, FinishReason, KvHandle, RequestSpec, StepDelta

STORY_MOVES = 32


class RequestState(enum.Enum):
    """Where a request is in its life; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BlockState(enum.Enum):
    """Where the request's current block is. A local prefill is part of DECODING."""

    WAITING_PREFILL = "waiting_prefill"
    PREFILLING = "prefilling"
    KV_READY = "kv_ready"
    TRANSFERRING = "transferring"
    DECODING = "decoding"
    COMMITTED = "committed"


State = RequestState | BlockState

_ENDS = frozenset({RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED})

LAWFUL_MOVES: dict[State, frozenset[State]] = {
    RequestState.QUEUED: frozenset({RequestState.RUNNING, RequestState.FAILED, RequestState.CANCELLED}),
    RequestState.RUNNING: _ENDS,
    RequestState.FINISHED: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    BlockState.WAITING_PREFILL: frozenset({BlockState.PREFILLING, BlockState.DECODING}),
    BlockState.PREFILLING: frozenset({BlockState.WAITING_PREFILL, BlockState.KV_READY, BlockState.COMMITTED}),
    BlockState.KV_READY: frozenset({BlockState.WAITING_PREFILL, BlockState.TRANSFERRING, BlockState.DECODING}),
    # Back to KV_READY: the decode worker had no pages, and the K/V still lies at its owner.
    BlockState.TRANSFERRING: frozenset({BlockState.WAITING_PREFILL, BlockState.KV_READY, BlockState.DECODING}),
    # Back to KV_READY from DECODING: a decode without K/V (cache mode none) was refused before its first step.
    BlockState.DECODING: frozenset({BlockState.WAITING_PREFILL, BlockState.KV_READY, BlockState.COMMITTED}),
    BlockState.COMMITTED: frozenset({BlockState.WAITING_PREFILL}),
}
"""From each state, where it may go. Everything else is a bug."""

Story = tuple[tuple[float, State, State], ...]


def told(story: Story) -> str:
    """A story in one line."""
    return "; ".join(f"{at_s:.6f} {a.value} -> {b.value}" for at_s, a, b in story) or "none"


class InvalidTransition(AssertionError):
    """A move that the table does not allow: a bug in the core. Carries the request's latest moves."""

    def __init__(self, request_id: RequestId, origin: State, target: State, story: Story) -> None:
        super().__init__(f"{request_id}: {origin.value} -> {target.value} is not allowed (story: {told(story)})")
        self.request_id = request_id
        self.origin = origin
        self.target = target
        self.story = story


class CallKind(enum.Enum):
    """What a call was asked to do."""

    PREFILL = "prefill"
    LOCAL_DECODE = "local_decode"
    REMOTE_DECODE = "remote_decode"
    NO_KV_DECODE = "no_kv_decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A live call: whose it is, where it runs, what it does."""

    call_id: CallId
    request_id: RequestId
    target: WorkerLife
    kind: CallKind
    placed_s: float


def unlawful(call: Call, delta: StepDelta | None) -> str:
    """What to log of an answer that the call's worker could not rightly give; positions, never tokens."""
    said = "the block's end" if delta is None else f"step {delta.step} at positions {delta.positions}"
    return f"{call.target.worker_id} answered a {call.kind.value} call with {said}, which is against the rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """What a finished prefill left: its worker, its own step, and the K/V (None in cache mode none)."""

    owner: WorkerSpec
    first: StepDelta
    handle: KvHandle | None
    lease_ends_s: float

    def page_rounded_tokens(self, canvas_tokens: int) -> int:
        """Decode memory that a canvas waits for, in tokens."""
        return self.owner.pages_for(canvas_tokens) * self.owner.page_size_tokens


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """The scheduler's record of a living request; dropped at its end.

    `committed` holds every earlier block in full, `shown` what the client has seen of the current block
    (position -> token; never changes), `revealed` the positions that the current attempt has revealed. `home` is the
    worker that had its last prefill. `canvas_tokens` are prompt plus generated positions, `canvas_generated_tokens` the
    latter. `reader` is a call beside that of the prefill: of a decode worker that fetches its K/V already. `attempt`
    names the current try; `uncounted_attempts` names were given without a failure (`rename_attempt`).
    """

    spec: RequestSpec
    id: RequestId
    submitted_s: float
    deadline_at_s: float | None
    fits_known: bool
    committed: list[int]
    shown: dict[int, int]
    block: int
    cost: BlockCost
    canvas_tokens: int
    canvas_generated_tokens: int
    home: WorkerSpec | None = None
    attempt: int = 0
    uncounted_attempts: int = 0
    refusals: int = 0
    state: RequestState = RequestState.QUEUED
    block_state: BlockState = BlockState.WAITING_PREFILL
    revealed: set[int] = field(default_factory=set)
    call: Call | None = None
    reader: Call | None = None
    prefilled: Prefilled | None = None
    _story: deque[tuple[float, State, State]] = field(default_factory=lambda: deque(maxlen=STORY_MOVES))

    @classmethod
    def submitted(cls, spec: RequestSpec, now: float, *, fits_known: bool, max_gen_len_tokens: int = 0) -> Request:
        """A new request. `fits_known`: some live worker was seen that its canvas fits.

        `max_gen_len_tokens` above 0 fixes the generated part of the canvas, rounded up to whole blocks.
        """
        generated_tokens = spec.generated_tokens(max_gen_len_tokens)
        return cls(
            spec=spec,
            id=spec.request_id,
            submitted_s=now,
            deadline_at_s=None if spec.deadline_s is None else now + spec.deadline_s,
            fits_known=fits_known,
            committed=list(spec.committed_token_ids),
            shown=dict(spec.shown),
            block=len(spec.committed_token_ids) // spec.block_length_tokens,
            cost=BlockCost(ready_s=now),
            canvas_tokens=len(spec.prompt_token_ids) + generated_tokens,
            canvas_generated_tokens=generated_tokens,
        )

    @property
    def decode_step_tokens(self) -> int:
        """Query tokens of one decode step of the current block, by cache mode."""
        mode, length = self.spec.cache_mode, self.spec.block_length_tokens
        if mode is CacheMode.DUAL:
            return length
        return self.canvas_generated_tokens - self.block * length if mode is CacheMode.PREFIX else self.canvas_tokens

    @property
    def queue_key(self) -> tuple[float, RequestId]:
        """Earlier submissions first: an old request's next block outranks newcomers."""
        return self.submitted_s, self.id

    @property
    def block_attempt(self) -> BlockAttempt:
        """The current try."""
        return BlockAttempt(self.id, self.block, self.attempt)

    @property
    def tries(self) -> int:
        """Tries at the current block so far, this one included."""
        return self.attempt - self.uncounted_attempts + 1

    @property
    def block_range(self) -> range:
        """Generated-relative positions of the current block."""
        length = self.spec.block_length_tokens
        return range(self.block * length, (self.block + 1) * length)

    @property
    def on_last_block(self) -> bool:
        """Whether no block follows the current one."""
        return self.block == self.spec.blocks - 1

    @property
    def story(self) -> Story:
        """Its latest moves as (time, from, to), oldest first; bounded."""
        return tuple(self._story)

    @property
    def tokens(self) -> tuple[tuple[int, int], ...]:
        """Every (position, token) that its client has, ascending."""
        return (*enumerate(self.committed), *sorted(self.shown.items()))

    def is_asked_for_by(self, spec: RequestSpec) -> bool:
        """Whether `spec` asks for what this request does and contradicts none of its tokens; deadlines may differ."""
        mine = replace(self.spec, deadline_s=None, committed_token_ids=(), shown=())
        if mine != replace(spec, deadline_s=None, committed_token_ids=(), shown=()):
            return False
        known = dict(self.tokens)
        given = (*enumerate(spec.committed_token_ids), *spec.shown)
        return all(known.get(position, token) == token for position, token in given)

    def move(self, target: BlockState, now: float) -> None:
        """Move the block; raises `InvalidTransition`."""
        self._check(self.block_state, target, now)
        self.block_state = target

    def move_request(self, target: RequestState, now: float) -> None:
        """Move the request; raises `InvalidTransition`."""
        self._check(self.state, target, now)
        self.state = target

    def work(self) -> BlockWork:
        """The current block as a worker gets it."""
        spec = self.spec
        return BlockWork(
            attempt=self.block_attempt,
            prompt_token_ids=spec.prompt_token_ids,
            generated_token_ids=tuple(self.committed),
            max_tokens=spec.max_tokens,
            canvas_generated_tokens=self.canvas_generated_tokens,
            block_length_tokens=spec.block_length_tokens,
            cache_mode=spec.cache_mode,
            sampling=spec.sampling,
            ignore_eos=spec.ignore_eos,
        )

    def start_attempt(self) -> None:
        """Begin the next try at the current block: masked, from its first step. What was shown stays shown."""
        self.attempt += 1
        self.refusals = 0
        self.revealed.clear()

    def rename_attempt(self) -> None:
        """Go on with the current try under another name: a worker may know the old one as cancelled."""
        self.attempt += 1
        self.uncounted_attempts += 1

    def start_next_block(self, now: float) -> None:
        """Commit the current block in full and turn to the next."""
        self.committed += [self.shown[position] for position in self.block_range]
        self.block += 1
        self.attempt = 0
        self.uncounted_attempts = 0
        self.refusals = 0
        self.shown = {}
        self.revealed = set()
        self.prefilled = None
        self.cost = BlockCost(ready_s=now)

    def reveal(self, delta: StepDelta) -> tuple[StepDelta | None, int]:
        """Take in what a forward revealed; returns what is new to the client, and how many tokens differ from it."""
        new = dict(zip(delta.positions, delta.token_ids, strict=True))
        if len(new) == len(delta.positions) and self.shown.keys().isdisjoint(new):
            # Nothing was shown before, as almost always: the delta can go on as it is.
            self.shown.update(new)
            self.revealed.update(new)
            return (delta if new else None), 0
        fresh: list[int] = []
        differing = 0
        for index, (position, token) in enumerate(zip(delta.positions, delta.token_ids, strict=True)):
            if position not in self.shown:
                self.shown[position] = token
                fresh.append(index)
            elif position not in self.revealed:
                differing += self.shown[position] != token
            self.revealed.add(position)
        if not fresh:
            return None, differing
        picked = StepDelta(
            step=delta.step,
            positions=tuple(delta.positions[index] for index in fresh),
            token_ids=tuple(delta.token_ids[index] for index in fresh),
            confidences=tuple(delta.confidences[index] for index in fresh),
        )
        return picked, differing

    def is_well_formed(self, delta: StepDelta) -> bool:
        """Whether a delta speaks of this block only, in parallel tuples."""
        positions, length = delta.positions, self.spec.block_length_tokens
        start = self.block * length
        parallel = len(positions) == len(delta.token_ids) == len(delta.confidences)
        return parallel and (not positions or (start <= min(positions) and max(positions) < start + length))

    def is_complete(self, completion: BlockCompletion) -> bool:
        """Whether the current attempt has revealed what a completion of that kind needs."""
        if completion.finish is FinishReason.STOP:
            return bool(self.revealed)
        if self.on_last_block != (completion.finish is FinishReason.LENGTH):
            return False
        end = min(self.block_range.stop, self.spec.max_tokens)
        return self.revealed.issuperset(range(self.block_range.start, end))

    def _check(self, origin: State, target: State, now: float) -> None:
        if target not in LAWFUL_MOVES[origin]:
            raise InvalidTransition(self.id, origin, target, self.story)
        self._story.append((now, origin, target))
