"""A scheduler core on a stage: short commands for what happens, effects as they come."""

from __future__ import annotations

from typing import Any, TypeVar

from common.core import effects as fx
from common.core import events as ev
from common.core.cluster import WorkerSpec, WorkerView
from common.core.ids import Role, ServingMode
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.core.work import BlockCompletion, FinishReason, KvHandle, KvTransfer, RequestSpec, StepDelta
from common.errors import Reason
from tests.core.samples import delta, request_spec, worker_spec

E = TypeVar("E")
Call = fx.CallPrefill | fx.CallDecode
TRANSFER = KvTransfer(transfer_s=0.25, exposed_s=0.125, transfer_bytes=640)


class Stage:
    """Keeps the time; each command returns the effects it caused and keeps them in `told`.

    Decodes follow their prefills unless `kv_overlap` is among the settings.
    """

    def __init__(self, mode: ServingMode, *workers: WorkerSpec, **settings: object) -> None:
        chosen: dict[str, Any] = {"kv_overlap": False, **settings}
        self.core = SchedulerCore(SchedulerConfig(mode=mode, **chosen))
        self.now = 0.0
        self.told: list[fx.SchedulerEffect] = []
        self.clients: set[str] = set()
        for spec in workers:
            self.register(spec)

    def feed(self, event: ev.SchedulerEvent) -> list[fx.SchedulerEffect]:
        """Handle an event; conservation holds after each, and nothing is held for nobody."""
        effects = self.core.handle(event, self.now)
        self.core.check_conservation()
        if isinstance(event, ev.RequestSubmitted):
            self.clients.add(event.spec.request_id)
        self.clients -= {e.request_id for e in effects if isinstance(e, fx.FinishRequest | fx.FailRequest)}
        assert self.core.unowned(self.clients) == []
        self.told += effects
        return effects

    def register(self, spec: WorkerSpec) -> list[fx.SchedulerEffect]:
        return self.feed(ev.WorkerRegistered(worker=spec))

    def lose(self, spec: WorkerSpec) -> list[fx.SchedulerEffect]:
        return self.feed(ev.WorkerLost(life=spec.life))

    def submit(self, spec: RequestSpec) -> list[fx.SchedulerEffect]:
        return self.feed(ev.RequestSubmitted(spec=spec))

    def tick(self, at_s: float) -> list[fx.SchedulerEffect]:
        """Let time pass until `at_s`."""
        self.now = at_s
        return self.feed(ev.Tick())

    def prefilled(self, call: Call, positions: list[int], *, lease_s: float = 30.0) -> list[fx.SchedulerEffect]:
        """The prefill worker answers with K/V under lease."""
        first = delta(call.work.attempt.request_id, 0, positions)
        return self.feed(
            ev.PrefillCompleted(call_id=call.call_id, first=first, kv=handle_of(call, lease_s), completion=None)
        )

    def prefill_finished(
        self, call: Call, positions: list[int], finish: FinishReason | None = None
    ) -> list[fx.SchedulerEffect]:
        """The prefill's own step completed the block."""
        first = delta(call.work.attempt.request_id, 0, positions)
        return self.feed(ev.PrefillCompleted(call_id=call.call_id, first=first, kv=None, completion=done(0, finish)))

    def received(self, call: Call, first: StepDelta | None = None) -> list[fx.SchedulerEffect]:
        return self.feed(ev.DecodeKvReceived(call_id=call.call_id, transfer=TRANSFER, first=first))

    def stepped(self, call: Call, step: int, positions: list[int]) -> list[fx.SchedulerEffect]:
        return self.feed(
            ev.DecodeStepped(call_id=call.call_id, step=delta(call.work.attempt.request_id, step, positions))
        )

    def completed(self, call: Call, forwards: int, finish: FinishReason | None = None) -> list[fx.SchedulerEffect]:
        return self.feed(ev.DecodeCompleted(call_id=call.call_id, completion=done(forwards, finish)))

    def fail(self, call: Call, reason: Reason) -> list[fx.SchedulerEffect]:
        return self.feed(ev.CallFailed(call_id=call.call_id, reason=reason))

    def run_block(self, call: Call, finish: FinishReason | None = None) -> list[fx.SchedulerEffect]:
        """A local decode does its whole block in one step."""
        start = call.work.block_start_position
        before = self.stepped(call, 0, list(range(start, start + call.work.block_length_tokens)))
        return before + self.completed(call, 0, finish)

    def worker(self, name: str) -> WorkerView:
        """The view of one worker."""
        return next(view for view in self.core.view().workers if view.spec.life.worker_id == name)

    def assert_idle(self) -> None:
        """Nothing is held, queued or alive."""
        view = self.core.view()
        assert (view.running_requests, view.queued_blocks, view.waiting_decode_blocks) == (0, 0, 0)
        for worker in view.workers:
            assert worker.pages_free == worker.spec.pages_total
            assert worker.outstanding_prefill_tokens == worker.active_decodes == 0


def done(decode_forwards: int, finish: FinishReason | None = None) -> BlockCompletion:
    """A completion after one prefill forward."""
    return BlockCompletion(prefill_forwards=1, decode_forwards=decode_forwards, finish=finish)


def handle_of(call: Call, lease_s: float = 30.0) -> KvHandle:
    """The K/V that the target of a Prefill call keeps."""
    pages = call.work.pages(4)
    return KvHandle(
        attempt=call.work.attempt,
        owner=call.target,
        transport="tcp",
        address="host:1",
        layout_fingerprint="layout",
        canvas_tokens=call.work.canvas_tokens,
        pages=pages,
        lease_s=lease_s,
    )


def only(effects: list[fx.SchedulerEffect], kind: type[E]) -> E:
    """The single effect of that kind."""
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def kinds(effects: list[fx.SchedulerEffect]) -> list[str]:
    """Names of the effects, in order."""
    return [type(effect).__name__ for effect in effects]


def prefiller(name: str = "p", *, incarnation: int = 1, pages: int = 16, layout: str = "layout") -> WorkerSpec:
    return worker_spec(name, Role.PREFILL, incarnation=incarnation, pages=pages, layout=layout)


def decoder(name: str = "d", *, incarnation: int = 1, pages: int = 16, layout: str = "layout") -> WorkerSpec:
    return worker_spec(name, Role.DECODE, incarnation=incarnation, pages=pages, layout=layout)


def targets(effects: list[fx.SchedulerEffect]) -> list[tuple[str, str]]:
    """(request, worker) of every call placed."""
    calls = [effect for effect in effects if isinstance(effect, fx.CallPrefill | fx.CallDecode)]
    return [(call.work.attempt.request_id, call.target.worker_id) for call in calls]


def decoding(stage: Stage, name: str = "r", *, lease_s: float = 30.0) -> tuple[fx.CallPrefill, fx.CallDecode]:
    """A request whose first block was prefilled and is being fetched."""
    prefill = only(stage.submit(request_spec(name)), fx.CallPrefill)
    return prefill, only(stage.prefilled(prefill, [0], lease_s=lease_s), fx.CallDecode)


def attempt_of(effects: list[fx.SchedulerEffect]) -> tuple[str, int]:
    """(worker, attempt) of the single call placed."""
    (call,) = [effect for effect in effects if isinstance(effect, fx.CallPrefill | fx.CallDecode)]
    return call.target.worker_id, call.work.attempt.attempt
