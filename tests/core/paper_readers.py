"""Early readers on paper: who may fetch K/V that is being computed, when somebody must, and what becomes of them."""

from __future__ import annotations

import random

from common.core import effects as fx
from common.core import events as ev
from common.core.block_cost import NO_TRANSFER
from common.core.ids import Role, ServingMode
from common.core.params import CacheMode
from common.core.scheduler_config import SchedulerConfig
from common.core.work import RemoteKv
from common.errors import Reason
from tests.core.paper_cluster import DECODING, PREFILLING, READY, WAITING, PaperCall, PaperCluster, PaperRequest
from tests.core.violation import require


class PaperReaders(PaperCluster):
    """The second call that a block may have: of a decode worker, while its prefill runs."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.readers = 0
        self.readers_unused = 0

    def is_reader(self, call: PaperCall) -> bool:
        """Whether that call reads K/V whose prefill has not been said to have ended."""
        return self.requests[call.work.attempt.request_id].reader_id == call.effect.call_id

    def judge_reader(self, effect: fx.CallDecode, source: RemoteKv) -> None:
        """An early Decode call: right worker, right handle, right moment, at nobody's expense."""
        request = self.requests[effect.work.attempt.request_id]
        require(self.config.kv_overlap, "reads early although that is off")
        require(request.phase == PREFILLING and request.call_id is not None, "reads what nobody computes")
        require(request.spec.cache_mode is not CacheMode.NONE, "reads K/V that will not be kept")
        require(request.reader_id is None and not request.read_early, "a second early reader")
        prefill = self.calls[request.call_id or 0]
        expected = self.handle(prefill)
        require(source.handle.lease_s > 0.0, "a reader without time")
        require(source.handle.owner == prefill.effect.target, "reads elsewhere than the prefill runs")
        same = (source.handle.attempt, source.handle.pages, source.handle.address)
        require(same == (expected.attempt, expected.pages, expected.address), "another handle than the owner's")
        require(self.is_near(prefill), "reads long before the prefill's turn")
        require(not any(r.phase == READY for r in self.requests.values()), "takes what finished prefills wait for")
        if self.overflows():
            spec = self.workers[effect.target]
            free = sum(self.free(reader.life) for reader in self.willing(Role.DECODE))
            waiting = [spec.pages_for(r.canvas) for r in self.requests.values() if r.phase == WAITING]
            left = free - spec.pages_for(request.canvas)
            require(not waiting or left >= min(waiting), "takes what a waiting block could overflow to")

    def open_reader(self, request: PaperRequest, call_id: int) -> None:
        """It runs now."""
        request.reader_id, request.read_early = call_id, True
        self.readers += 1

    def reader_ended(self, request: PaperRequest) -> None:
        """It ended with its prefill or before."""
        request.reader_id = None
        self.readers_unused += 1

    def rely_on_reader(self, request: PaperRequest) -> None:
        """The prefill has ended and left K/V: its early reader, if there is one, has the block now."""
        if request.reader_id is None or request.first is None:
            return
        reader = self.calls[request.reader_id]
        reader.revealed, reader.step = set(request.first.positions), 1
        request.call_id, request.reader_id, request.phase = request.reader_id, None, DECODING

    def break_reader(self, call: PaperCall, reason: Reason) -> None:
        """Its call fails: the prefill goes on as if nothing had been, unless the worker says that it is broken."""
        request = self.requests[call.work.attempt.request_id]
        del self.calls[call.effect.call_id]
        self.reader_ended(request)
        if reason is Reason.INTERNAL:
            request.may_fail = Reason.INTERNAL

    def overtake(self, reader: PaperCall, rng: random.Random) -> list[ev.SchedulerEvent]:
        """The prefill ran, and what the reader says of it comes before what the prefill worker says."""
        request = self.requests[reader.work.attempt.request_id]
        late = self.finish_prefill(self.calls[request.call_id or 0], rng)
        self.rely_on_reader(request)
        if late.completion is not None:
            return [late]
        self.got_kv(reader)
        news = ev.DecodeKvReceived(call_id=reader.effect.call_id, transfer=NO_TRANSFER, first=late.first)
        return [news, late]

    def fetches_since_before(self, request: PaperRequest) -> bool:
        """Whether a reader that came before the prefill had ended has yet to say that it has the K/V."""
        call = None if request.phase != DECODING or request.call_id is None else self.calls[request.call_id]
        return call is not None and isinstance(call.source, RemoteKv) and call.source.early and not call.kv_received

    def is_near(self, prefill: PaperCall) -> bool:
        """Whether that prefill may be in its worker's next forward: what is before it leaves it room, or is nothing."""
        here = [c for c in self.calls.values() if c.effect.target == prefill.effect.target]
        ahead = [c for c in here if c.prefills and c.effect.call_id < prefill.effect.call_id]
        tokens = sum(c.work.canvas_tokens for c in [*ahead, prefill])
        return not ahead or tokens <= self.workers[prefill.effect.target].max_prefill_tokens_per_batch

    def overflows(self) -> bool:
        """Whether waiting blocks may go to decode workers."""
        return self.config.mode is ServingMode.HYBRID and self.config.overflow_enabled

    def judge_reader_progress(self) -> None:
        """Nobody's prefill runs unread while a decode worker surely has room that no other block waits for."""
        phases = {request.phase for request in self.requests.values()}
        always = self.config.kv_overlap and self.config.min_kept_share == 0.0
        if not always or READY in phases or (self.overflows() and WAITING in phases):
            return
        unread = [request for request in self.requests.values() if self._could_be_read(request)]
        head = min(unread, key=lambda request: request.key, default=None)
        if head is not None:
            room = [spec for spec in self.willing(Role.DECODE) if self.has_room(spec, head.canvas)]
            require(not room, f"{head.key} is not read early although {room} has room")

    def _could_be_read(self, request: PaperRequest) -> bool:
        if request.phase != PREFILLING or request.call_id is None or request.read_early:
            return False
        return request.spec.cache_mode is not CacheMode.NONE and self.is_near(self.calls[request.call_id])
