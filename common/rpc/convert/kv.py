"""Where K/V lies: handles, and the source a decode starts from."""

from __future__ import annotations

from common.core.work import KvHandle, KvSource, KvTransfer, LocalPrefill, NoKv, RemoteKv, StepDelta
from common.errors import InvalidRequest
from common.rpc.convert.fields import duration, join, milliseconds, non_empty, positive, require
from common.rpc.convert.ids import (
    block_attempt_from_proto,
    block_attempt_to_proto,
    worker_life_from_proto,
    worker_life_to_proto,
)
from common.rpc.convert.progress import step_delta_from_proto, step_delta_to_proto
from sangam.v1 import decode_pb2, types_pb2


def kv_handle_to_proto(handle: KvHandle) -> types_pb2.KvHandle:
    """The message of `handle`; the lease is rounded to milliseconds."""
    return types_pb2.KvHandle(
        attempt=block_attempt_to_proto(handle.attempt),
        owner=worker_life_to_proto(handle.owner),
        transport=handle.transport,
        address=handle.address,
        layout_fingerprint=handle.layout_fingerprint,
        canvas_tokens=handle.canvas_tokens,
        pages=handle.pages,
        lease_ms=milliseconds(handle.lease_s),
    )


def kv_handle_from_proto(message: types_pb2.KvHandle, path: str = "handle") -> KvHandle:
    """The handle; raises InvalidRequest naming what is missing."""
    return KvHandle(
        attempt=block_attempt_from_proto(message.attempt, require(message, "attempt", path)),
        owner=worker_life_from_proto(message.owner, require(message, "owner", path)),
        transport=non_empty(message.transport, join(path, "transport")),
        address=non_empty(message.address, join(path, "address")),
        layout_fingerprint=non_empty(message.layout_fingerprint, join(path, "layout_fingerprint")),
        canvas_tokens=positive(message.canvas_tokens, join(path, "canvas_tokens")),
        pages=positive(message.pages, join(path, "pages")),
        lease_s=message.lease_ms / 1000,
    )


def kv_source_to_proto(source: KvSource, request: decode_pb2.DecodeRequest) -> None:
    """Set the `kv_source` of `request`."""
    match source:
        case LocalPrefill():
            request.local_prefill.SetInParent()
        case RemoteKv(handle=handle, first=first):
            request.remote.handle.CopyFrom(kv_handle_to_proto(handle))
            if first is not None:
                request.remote.first.CopyFrom(step_delta_to_proto(first))
        case NoKv(first=first):
            request.none.CopyFrom(decode_pb2.NoKv(first=step_delta_to_proto(first)))


def kv_source_from_proto(request: decode_pb2.DecodeRequest) -> KvSource:
    """The source that `request` names; raises InvalidRequest when it names none or half of one."""
    match request.WhichOneof("kv_source"):
        case "local_prefill":
            return LocalPrefill()
        case "remote":
            remote = request.remote
            handle = kv_handle_from_proto(remote.handle, require(remote, "handle", "remote"))
            known = remote.HasField("first")
            return RemoteKv(handle=handle, first=step_delta_from_proto(remote.first, "remote.first") if known else None)
        case "none":
            first = step_delta_from_proto(request.none.first, require(request.none, "first", "none"))
            return NoKv(first=first)
    raise InvalidRequest("kv_source", "is missing")


def kv_received_to_proto(transfer: KvTransfer, first: StepDelta | None) -> decode_pb2.KvReceived:
    """The message that says of a fetch what it took, and what it brought beside the K/V."""
    return decode_pb2.KvReceived(
        transfer_s=transfer.transfer_s,
        transfer_bytes=transfer.transfer_bytes,
        exposed_s=transfer.exposed_s,
        first=None if first is None else step_delta_to_proto(first),
    )


def kv_received_from_proto(
    message: decode_pb2.KvReceived, path: str = "kv_received"
) -> tuple[KvTransfer, StepDelta | None]:
    """What it took and what it brought; raises InvalidRequest for durations or a step that are none."""
    transfer = KvTransfer(
        transfer_s=duration(message.transfer_s, join(path, "transfer_s")),
        exposed_s=duration(message.exposed_s, join(path, "exposed_s")),
        transfer_bytes=message.transfer_bytes,
    )
    first = step_delta_from_proto(message.first, join(path, "first")) if message.HasField("first") else None
    return transfer, first
