"""Decode workers that fetch a block's K/V while its prefill computes it: how that begins, and how it may end first.

Beside the call of the prefill, `Request.call`, such a block has the call of its early reader, `Request.reader`. Once
the prefill has ended, `BlockFlow.rely_on_reader` makes that the block's one call.
"""

from __future__ import annotations

from common.core import defaults
from common.core.block_flow import BlockFlow
from common.core.cluster import WorkerSpec
from common.core.request import CallKind, Request
from common.core.work import KvHandle, KvTransfer, RemoteKv, StepDelta
from common.core.worker_account import WorkerAccount


def start_reader(flow: BlockFlow, request: Request, account: WorkerAccount, *, owner: WorkerSpec) -> None:
    """Let a decode worker fetch what the block's prefill computes at `owner`."""
    assert request.reader is None, request.id
    flow.book.leave_early_line(request)
    flow.last_decode_worker_id = account.life.worker_id
    flow.early_readers += 1
    request.reader = flow.open_call(request, account, CallKind.REMOTE_DECODE)
    flow.emit_decode(request, request.reader, RemoteKv(handle=_handle(request, owner), first=None))


def early_kv(flow: BlockFlow, request: Request, first: StepDelta, transfer: KvTransfer) -> None:
    """The early reader has all of the K/V, and could say so before the prefill worker did."""
    prefill, prefilled_s = request.call, flow.now - transfer.exposed_s
    assert prefill is not None, request.id
    request.cost.prefill_s = max(0.0, prefilled_s - prefill.placed_s)
    flow.kept_shares.observe(request.spec.sampling.strategy, True)
    flow.end_call(request, cancel=False)
    flow.reveal(request, first)
    flow.rely_on_reader(request, prefilled_s)
    flow.kv_arrived(request, transfer)


def _handle(request: Request, owner: WorkerSpec) -> KvHandle:
    """The K/V that `owner` will keep for the block. Nothing is leased yet: the time bounds the wait and the fetch."""
    return KvHandle(
        attempt=request.block_attempt,
        owner=owner.life,
        transport=owner.kv_transport,
        address=owner.kv_address,
        layout_fingerprint=owner.layout_fingerprint,
        canvas_tokens=request.canvas_tokens,
        pages=owner.pages_for(request.canvas_tokens),
        lease_s=defaults.EARLY_FETCH_S,
    )
