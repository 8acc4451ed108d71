"""Carries out what the worker core asks for, forwards excepted: one method per effect, found by the effect's type."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf.message import DecodeError

from common.clock import Clock
from common.core.ids import BlockAttempt, WorkerLife
from common.core.params import CacheMode
from common.core.work import IterationReport, KvHandle, StepDelta
from common.core.worker_effects import (
    AbortFetch,
    CloseBlock,
    FetchKv,
    ForgetKv,
    OpenBlock,
    Report,
    RetainKv,
    RunIteration,
    SendCompletion,
    SendFailure,
    SendKvReceived,
    SendPrefillResult,
    SendStep,
    WorkerEffect,
)
from common.core.worker_events import KvFetched, KvFetchFailed, WorkerEvent
from common.errors import InvalidRequest, Reason, WireError
from common.model_config import ModelConfig
from common.rpc.convert import (
    block_completion_to_proto,
    kv_handle_to_proto,
    kv_received_to_proto,
    step_delta_from_proto,
    step_delta_to_proto,
)
from common.rpc.status import wire_error_for
from common.transport.base import KvTransport
from common.worker.calls import CallTable
from common.worker.forward_thread import ForwardJob, ForwardThread
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging
from common.worker.measures import WorkerMeasures
from common.worker.pool_sink import PoolSink
from common.worker.registry_client import RegistryClient
from common.worker.retained_kv import RetainedKv
from common.worker.scheduler_link import SchedulerLink
from common.worker.work_checks import check_first
from sangam.v1 import decode_pb2, prefill_pb2, types_pb2

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, WorkerEvent]], "asyncio.Task[WorkerEvent]"]
"""Starts a task that the app owns."""


class Performer:
    """The hands of one worker; never blocks, and runs on the event loop.

    What takes time runs in a task made by `spawn` and comes back through `feed`.
    """

    def __init__(
        self,
        *,
        model: ModelConfig,
        staging: KvStaging,
        clock: Clock,
        life: Callable[[], WorkerLife],
        kv_address: Callable[[], str],
        calls: CallTable,
        retained: RetainedKv,
        transport: KvTransport,
        serving: KvServing,
        link: SchedulerLink,
        registry: RegistryClient,
        forward: ForwardThread,
        spawn: Spawn,
        feed: Callable[[WorkerEvent], None],
        measures: WorkerMeasures,
    ) -> None:
        self._model = model
        self._staging = staging
        self._clock = clock
        self._life = life
        self._kv_address = kv_address
        self._calls = calls
        self._retained = retained
        self._transport = transport
        self._serving = serving
        self._link = link
        self._forward = forward
        self._registry = registry
        self._spawn = spawn
        self._feed = feed
        self._measures = measures
        self._fetches: dict[BlockAttempt, asyncio.Task[WorkerEvent]] = {}
        self._unmeasured: list[IterationReport] = []
        self._methods: dict[type[WorkerEffect], Callable[[Any], None]] = {
            FetchKv: self._fetch_kv,
            AbortFetch: self._abort_fetch,
            RetainKv: self._retain_kv,
            ForgetKv: self._forget_kv,
            SendKvReceived: self._send_kv_received,
            SendStep: self._send_step,
            SendPrefillResult: self._send_prefill_result,
            SendCompletion: self._send_completion,
            SendFailure: self._send_failure,
            Report: self._report,
        }

    def perform(self, effect: WorkerEffect) -> None:
        """Carry out one effect."""
        self._methods[type(effect)](effect)

    def run_forward(self, job: ForwardJob) -> None:
        """Hand one forward to its thread."""
        if self._kv_address():
            for change in job.changes:
                self._announce(change, job.run)
        self._forward.submit(job)

    def _announce(self, change: OpenBlock | CloseBlock, iteration: RunIteration) -> None:
        """A prefill that leaves K/V starts: who decodes it may come for each layer as soon as it is computed."""
        if not isinstance(change, OpenBlock) or change.work.cache_mode is CacheMode.NONE:
            return
        if change.work.attempt in iteration.prefills:
            self._serving.announce(change.work.attempt, change.page_ids)

    def _fetch_kv(self, effect: FetchKv) -> None:
        task = self._spawn(self._fetch(effect))
        self._fetches[effect.attempt] = task
        task.add_done_callback(lambda done: self._fetch_ended(effect.attempt, done))

    async def _fetch(self, effect: FetchKv) -> WorkerEvent:
        try:
            with PoolSink(self._staging, effect.page_ids) as sink:
                fetched = await self._transport.fetch(
                    handle=effect.handle, sink=sink, timeout_s=effect.handle.lease_s, early=effect.early
                )
            first = self._revealed(effect.attempt, fetched.trailer) if effect.early else None
        except WireError as error:
            self._measures.fetch_failed(error.reason, early=effect.early)
            return KvFetchFailed(attempt=effect.attempt, reason=error.reason)
        self._measures.fetched(fetched.transfer, path=fetched.path, early=effect.early)
        return KvFetched(attempt=effect.attempt, transfer=fetched.transfer, first=first)

    def _revealed(self, attempt: BlockAttempt, trailer: bytes) -> StepDelta:
        """What the prefill of an early fetch revealed; raises `WireError` KV_CHECKSUM when it cannot have."""
        outbox = self._calls.find(attempt)
        if outbox is None:
            raise WireError(Reason.CANCELLED, "the caller has gone")
        try:
            first = step_delta_from_proto(types_pb2.StepDelta.FromString(trailer))
            check_first(outbox.work, first, self._model)
        except (InvalidRequest, DecodeError) as error:
            log.warning("the K/V of %s came with no step of its block: %s", attempt, error)
            raise WireError(Reason.KV_CHECKSUM, "the K/V came with no step of its block") from None
        return first

    def _fetch_ended(self, attempt: BlockAttempt, task: asyncio.Task[WorkerEvent]) -> None:
        """A task cancelled before its first step never runs, so the end is noticed here and not inside it."""
        del self._fetches[attempt]
        if task.cancelled():
            self._feed(KvFetchFailed(attempt=attempt, reason=Reason.CANCELLED))
        elif task.exception() is None:
            self._feed(task.result())

    def _abort_fetch(self, effect: AbortFetch) -> None:
        # Absent: it has just ended, and its outcome is in the event queue.
        if task := self._fetches.get(effect.attempt):
            task.cancel()

    def _retain_kv(self, effect: RetainKv) -> None:
        handle = KvHandle(
            attempt=effect.attempt,
            owner=self._life(),
            transport=self._transport.name,
            address=self._kv_address(),
            layout_fingerprint=self._staging.pool.layout.fingerprint,
            canvas_tokens=effect.canvas_tokens,
            pages=len(effect.page_ids),
            lease_s=effect.lease_s,
        )
        self._retained.add(handle)
        self._serving.offer(effect.attempt, effect.page_ids, effect.canvas_tokens, self._clock.now() + effect.lease_s)
        self._registry.publish(handle)

    def _forget_kv(self, effect: ForgetKv) -> None:
        handle = self._retained.remove(effect.attempt)
        self._serving.withdraw(effect.attempt)
        self._registry.release(handle.owner, effect.attempt)
        self._link.kv_ended(effect.attempt)

    def _send_kv_received(self, effect: SendKvReceived) -> None:
        if outbox := self._calls.find(effect.attempt):
            received = kv_received_to_proto(effect.transfer, effect.first)
            # Told at once it would take the interpreter from the forward that now begins.
            outbox.send(decode_pb2.DecodeEvent(kv_received=received), can_wait=True)

    def _send_step(self, effect: SendStep) -> None:
        if outbox := self._calls.find(effect.attempt):
            outbox.send(decode_pb2.DecodeEvent(step=step_delta_to_proto(effect.step)))

    def _send_prefill_result(self, effect: SendPrefillResult) -> None:
        if effect.retained:
            self._serving.first_revealed(effect.attempt, step_delta_to_proto(effect.first).SerializeToString())
        if not (outbox := self._calls.find(effect.attempt)):
            return
        handle = self._retained.find(effect.attempt) if effect.retained else None
        assert (handle is not None) == effect.retained, f"{effect.attempt}: retained, but never told so"
        outbox.send(
            prefill_pb2.PrefillResponse(
                first=step_delta_to_proto(effect.first),
                kv=None if handle is None else kv_handle_to_proto(handle),
                completion=None if effect.completion is None else block_completion_to_proto(effect.completion),
            )
        )
        outbox.finish()

    def _send_completion(self, effect: SendCompletion) -> None:
        if outbox := self._calls.find(effect.attempt):
            outbox.send(decode_pb2.DecodeEvent(block_completed=block_completion_to_proto(effect.completion)))
            outbox.finish()

    def _send_failure(self, effect: SendFailure) -> None:
        if outbox := self._calls.find(effect.attempt):
            outbox.fail(wire_error_for(effect.reason, effect.message))

    def _report(self, effect: Report) -> None:
        self._link.report(effect.report)
        self._unmeasured.append(effect.report)
        if len(self._unmeasured) == 1:
            # Measured after what was performed with it, the answers that somebody waits for, has left.
            asyncio.get_running_loop().call_later(0, self._measure)

    def _measure(self) -> None:
        reports, self._unmeasured = self._unmeasured, []
        for report in reports:
            self._measures.report(report)
