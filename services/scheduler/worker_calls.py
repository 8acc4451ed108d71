"""The scheduler's calls to workers: one Prefill or Decode call per effect, its outcome as core events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
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


class WorkerCalls:
    """Channels to the registered lives, and the two calls over them.

    A channel lives as long as its worker's life. Cancelling a task that awaits a call cancels the call.
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

    async def prefill(self, effect: CallPrefill) -> AsyncGenerator[Sequence[CallOutcome], None]:
        """Run a prefill; yields its one outcome."""
        worker = self._workers.get(effect.target)
        if worker is None:
            yield [CallFailed(call_id=effect.call_id, reason=Reason.PEER_LOST)]
            return
        work = block_work_to_proto(effect.work, target_incarnation=effect.target.incarnation)
        try:
            request = prefill_pb2.PrefillRequest(work=work)
            response = await worker.prefill.Prefill(request, timeout=effect.deadline_s, metadata=trace_metadata())
            yield [_prefill_outcome(effect.call_id, response)]
        except grpc.aio.AioRpcError as error:
            yield [_failed(effect, wire_error(error))]
        except WireError as error:
            yield [_failed(effect, error)]

    async def decode(self, effect: CallDecode) -> AsyncGenerator[Sequence[CallOutcome], None]:
        """Run a block's decode; yields what each message says, the last is DecodeCompleted or CallFailed."""
        worker = self._workers.get(effect.target)
        if worker is None:
            yield [CallFailed(call_id=effect.call_id, reason=Reason.PEER_LOST)]
            return
        work = block_work_to_proto(effect.work, target_incarnation=effect.target.incarnation)
        request = decode_pb2.DecodeRequest(work=work)
        kv_source_to_proto(effect.source, request)
        call = worker.decode.Decode(request, timeout=effect.deadline_s, metadata=trace_metadata())
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
        finally:
            call.cancel()


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
