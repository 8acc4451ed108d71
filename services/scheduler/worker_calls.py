"""The scheduler's calls to workers: one Prefill or Decode call per effect, its outcome as core events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from common.core.cluster import WorkerSpec
from common.core.effects import CallDecode, CallPrefill
from common.core.events import CallFailed, DecodeCompleted, DecodeKvReceived, DecodeStepped, PrefillCompleted
from common.core.ids import CallId, WorkerLife
from common.errors import Reason, WireError
from common.rpc.channel import open_channel
from common.rpc.convert import (
    block_completion_from_proto,
    block_work_to_proto,
    kv_handle_from_proto,
    kv_received_from_proto,
    kv_source_to_proto,
    step_delta_from_proto,
)
from common.rpc.status import wire_error
from common.telemetry import trace_metadata
from sangam.v1 import decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc

if TYPE_CHECKING:
    from sangam.v1.decode_pb2_grpc import DecodeServiceAsyncStub
    from sangam.v1.prefill_pb2_grpc import PrefillServiceAsyncStub

    PrefillCall = grpc.aio.UnaryUnaryCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]
    DecodeCall = grpc.aio.UnaryStreamCall[decode_pb2.DecodeRequest, decode_pb2.DecodeResponse]

log = logging.getLogger(__name__)

CallOutcome = PrefillCompleted | DecodeKvReceived | DecodeStepped | DecodeCompleted | CallFailed


class _Worker:
    """The way to one life; it serves one of the two RPCs."""

    __slots__ = ("channel", "decode", "prefill")

    def __init__(self, address: str) -> None:
        self.channel = open_channel(address)
        self.prefill: PrefillServiceAsyncStub = prefill_pb2_grpc.PrefillServiceStub(self.channel)
        self.decode: DecodeServiceAsyncStub = decode_pb2_grpc.DecodeServiceStub(self.channel)
        # Connect now: the first block need not wait for it.
        self.channel.get_state(try_to_connect=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCall:
    """A call under way: `outcomes` yields what each message says, and is read once. It is `cancel`led when it has been
    read as far as anybody wants to; idempotent.
    """

    outcomes: AsyncGenerator[Sequence[CallOutcome], None]
    cancel: Callable[[], bool]


class WorkerCalls:
    """Channels to the registered lives, and the two calls over them; a channel lives as long as its worker's life.

    A call is under way when its method returns: it does not wait for a task's turn to read it.
    """

    def __init__(self) -> None:
        self._workers: dict[WorkerLife, _Worker] = {}

    def connect(self, worker: WorkerSpec) -> None:
        """Make calls to this life possible; idempotent."""
        if worker.life not in self._workers:
            self._workers[worker.life] = _Worker(worker.address)

    async def disconnect(self, life: WorkerLife) -> None:
        """End every call to this life and its channel; idempotent."""
        worker = self._workers.pop(life, None)
        if worker is not None:
            await worker.channel.close()

    async def aclose(self) -> None:
        """Close all channels."""
        for life in list(self._workers):
            await self.disconnect(life)

    def prefill(self, effect: CallPrefill) -> WorkerCall:
        """Run a prefill; it has one outcome."""
        worker = self._workers.get(effect.target)
        if worker is None:
            return _lost(effect)
        work = block_work_to_proto(effect.work, target_incarnation=effect.target.incarnation)
        request = prefill_pb2.PrefillRequest(work=work)
        call = worker.prefill.Prefill(request, timeout=effect.deadline_s, metadata=trace_metadata())
        return WorkerCall(outcomes=_prefill_outcomes(effect, call), cancel=call.cancel)

    def decode(self, effect: CallDecode) -> WorkerCall:
        """Run a block's decode; the last outcome is DecodeCompleted or CallFailed."""
        worker = self._workers.get(effect.target)
        if worker is None:
            return _lost(effect)
        work = block_work_to_proto(effect.work, target_incarnation=effect.target.incarnation)
        request = decode_pb2.DecodeRequest(work=work)
        kv_source_to_proto(effect.source, request)
        call = worker.decode.Decode(request, timeout=effect.deadline_s, metadata=trace_metadata())
        return WorkerCall(outcomes=_decode_outcomes(effect, call), cancel=call.cancel)


def _lost(effect: CallPrefill | CallDecode) -> WorkerCall:
    """The call to a life that is no more."""

    async def outcomes() -> AsyncGenerator[Sequence[CallOutcome], None]:
        yield [CallFailed(call_id=effect.call_id, reason=Reason.PEER_LOST)]

    return WorkerCall(outcomes=outcomes(), cancel=lambda: False)


async def _prefill_outcomes(effect: CallPrefill, call: PrefillCall) -> AsyncGenerator[Sequence[CallOutcome], None]:
    try:
        yield [_prefill_outcome(effect.call_id, await call)]
    except grpc.aio.AioRpcError as error:
        yield [_failed(effect, wire_error(error))]
    except WireError as error:
        yield [_failed(effect, error)]


async def _decode_outcomes(effect: CallDecode, call: DecodeCall) -> AsyncGenerator[Sequence[CallOutcome], None]:
    try:
        async for response in call:
            outcomes = [_decode_outcome(effect.call_id, event) for event in response.events]
            yield outcomes
            if outcomes and isinstance(outcomes[-1], DecodeCompleted):
                return
        early = WireError(Reason.PEER_LOST, "the decode stream ended before its block was complete")
        yield [_failed(effect, early)]
    except grpc.aio.AioRpcError as error:
        yield [_failed(effect, wire_error(error))]
    except WireError as error:
        yield [_failed(effect, error)]


def _prefill_outcome(call_id: CallId, response: prefill_pb2.PrefillResponse) -> PrefillCompleted:
    return PrefillCompleted(
        call_id=call_id,
        first=step_delta_from_proto(response.first),
        kv=kv_handle_from_proto(response.kv) if response.HasField("kv") else None,
        completion=block_completion_from_proto(response.completion) if response.HasField("completion") else None,
    )


def _decode_outcome(call_id: CallId, event: decode_pb2.DecodeEvent) -> CallOutcome:
    match event.WhichOneof("event"):
        case "kv_received":
            transfer, first = kv_received_from_proto(event.kv_received)
            return DecodeKvReceived(call_id=call_id, transfer=transfer, first=first)
        case "step":
            return DecodeStepped(call_id=call_id, step=step_delta_from_proto(event.step))
        case "block_completed":
            return DecodeCompleted(call_id=call_id, completion=block_completion_from_proto(event.block_completed))
        case _:
            raise WireError(Reason.INTERNAL, "a worker sent an event that this scheduler does not know")


def _failed(effect: CallPrefill | CallDecode, error: WireError) -> CallFailed:
    """The failure as the core counts it: a call that ended cancelled without our asking lost its peer."""
    reason = Reason.PEER_LOST if error.reason is Reason.CANCELLED else error.reason
    call, worker_id = type(effect).__name__, effect.target.worker_id
    log.warning("%s of %s on %s: %s: %s", call, effect.work.attempt, worker_id, reason.value, error)
    return CallFailed(call_id=effect.call_id, reason=reason)
