"""What follows from each way a Prefill or Decode call can fail (design, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from common.core.block_flow import BlockFlow
from common.core.defaults import MAX_REFUSALS_PER_ATTEMPT
from common.core.reasons import client_reason, message_for
from common.core.request import BlockState, Call, CallKind, Request
from common.core.worker_account import WorkerAccount
from common.errors import Reason

CLOCK_SLACK_S = 0.05
"""A call's own deadline may ring this much before the request's: both mean the client's deadline."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A live call that ended with an error, whose it was, and who answered."""

    call: Call
    request: Request
    account: WorkerAccount
    reason: Reason


def recover(flow: BlockFlow, failure: Failure) -> None:
    """End the failed call and do what its reason asks for; reasons without a rule end the request."""
    if failure.call is failure.request.reader:
        # The prefill goes on, and the block is decoded by somebody else, or later: no attempt is lost.
        flow.end_reader(failure.request, cancel=False)
        _READER_RULES.get(failure.reason, _fail)(flow, failure)
        return
    flow.end_call(failure.request, cancel=False)
    _RULES.get(failure.reason, _fail)(flow, failure)


def _elsewhere(flow: BlockFlow, failure: Failure) -> None:
    """The same attempt again, after a short back-off from that worker."""
    request = failure.request
    flow.back_off(failure.account, flow.now + flow.config.no_pages_backoff_s)
    request.refusals += 1
    begun = len(request.revealed) > (len(request.prefilled.first.positions) if request.prefilled else 0)
    if begun or request.refusals > MAX_REFUSALS_PER_ATTEMPT:
        flow.retry(request, failure.reason)
    elif request.prefilled is None:
        flow.await_other_prefill(request)
    elif flow.has_kv(request):
        flow.await_decode(request)
    else:
        flow.retry(request, failure.reason)


def _retry(flow: BlockFlow, failure: Failure) -> None:
    flow.retry(failure.request, failure.reason)


def _retry_suspect(flow: BlockFlow, failure: Failure) -> None:
    """Attempt + 1, and back off from the workers that may have caused it."""
    request = failure.request
    owner = request.prefilled.owner if request.block_state is BlockState.TRANSFERRING and request.prefilled else None
    owner_account = None if owner is None else flow.fleet.get(owner.life)
    if owner_account is not None:
        flow.suspect(owner_account)
    if owner is None or owner_account is not None:
        # Otherwise the owner of the K/V is known to be gone: the reader did nothing wrong.
        flow.suspect(failure.account)
    flow.retry(request, failure.reason)


def _past_deadline(flow: BlockFlow, failure: Failure) -> None:
    """The client's own deadline ends the request; any other timeout is the workers' trouble."""
    deadline_at_s = failure.request.deadline_at_s
    if deadline_at_s is not None and deadline_at_s - flow.now <= CLOCK_SLACK_S:
        _fail(flow, failure)
    else:
        _retry_suspect(flow, failure)


def _retry_draining(flow: BlockFlow, failure: Failure) -> None:
    """Attempt + 1, and nothing new for that worker."""
    flow.fleet.drain(failure.account)
    flow.retry(failure.request, failure.reason)


def _retry_life_over(flow: BlockFlow, failure: Failure) -> None:
    """Attempt + 1, and that life counts as lost; unless the reader may be speaking of the K/V's owner."""
    if failure.call.kind is CallKind.REMOTE_DECODE:
        _retry_suspect(flow, failure)
        return
    flow.retry(failure.request, failure.reason)
    flow.lose(failure.account.life)


def _other_pair(flow: BlockFlow, failure: Failure) -> None:
    """This owner and reader never again; attempt + 1 while another pair could hold the canvas."""
    request = failure.request
    if request.prefilled is None:
        _fail(flow, failure)
        return
    flow.fleet.refuse_pair(request.prefilled.owner.life, failure.account.life)
    limit_tokens = flow.fleet.canvas_limit_tokens
    if limit_tokens is None or request.canvas_tokens > limit_tokens:
        _fail(flow, failure)
    else:
        flow.retry(request, failure.reason)


def _fail(flow: BlockFlow, failure: Failure) -> None:
    call, reason = failure.call, failure.reason
    why = f"{call.target.worker_id} ended a {call.kind.value} call with {reason.value}"
    flow.fail(failure.request, client_reason(reason), message=message_for(reason), why=why)


_RULES: Mapping[Reason, Callable[[BlockFlow, Failure], None]] = MappingProxyType(
    {
        Reason.NO_KV_PAGES: _elsewhere,
        Reason.QUEUE_FULL: _elsewhere,
        # A live command is stale only to a worker that met a later attempt in an earlier life of this scheduler.
        Reason.STALE_ATTEMPT: _retry,
        Reason.KV_NOT_FOUND: _retry,
        Reason.KV_LEASE_EXPIRED: _retry,
        Reason.KV_CHECKSUM: _retry_suspect,
        Reason.PEER_LOST: _retry_suspect,
        # gRPC answers CANCELLED by itself when a server is flooded; our own cancels never come back as failures.
        Reason.CANCELLED: _retry_suspect,
        Reason.WORKER_NOT_FOUND: _retry_suspect,
        Reason.DEADLINE_EXCEEDED: _past_deadline,
        Reason.WORKER_DRAINING: _retry_draining,
        Reason.STALE_INCARNATION: _retry_life_over,
        Reason.LAYOUT_MISMATCH: _other_pair,
    }
)


def _let_be(flow: BlockFlow, failure: Failure) -> None:
    """It found nothing to fetch: its worker did nothing wrong."""


def _rest(flow: BlockFlow, failure: Failure) -> None:
    flow.back_off(failure.account, flow.now + flow.config.no_pages_backoff_s)


def _suspect(flow: BlockFlow, failure: Failure) -> None:
    flow.suspect(failure.account)


def _drain(flow: BlockFlow, failure: Failure) -> None:
    flow.fleet.drain(failure.account)


def _bar_pair(flow: BlockFlow, failure: Failure) -> None:
    prefill = failure.request.call
    assert prefill is not None, failure.call
    flow.fleet.refuse_pair(prefill.target, failure.account.life)


_READER_RULES: Mapping[Reason, Callable[[BlockFlow, Failure], None]] = MappingProxyType(
    {
        Reason.NO_KV_PAGES: _rest,
        Reason.QUEUE_FULL: _rest,
        Reason.STALE_ATTEMPT: _let_be,
        # Said also of a prefill that kept nothing; its own answer is on the way.
        Reason.KV_NOT_FOUND: _let_be,
        Reason.KV_LEASE_EXPIRED: _let_be,
        Reason.KV_CHECKSUM: _suspect,
        Reason.PEER_LOST: _suspect,
        Reason.CANCELLED: _suspect,
        Reason.WORKER_NOT_FOUND: _suspect,
        Reason.DEADLINE_EXCEEDED: _let_be,
        Reason.WORKER_DRAINING: _drain,
        # The reader may be speaking of the prefill worker, whose own call will say so.
        Reason.STALE_INCARNATION: _suspect,
        Reason.LAYOUT_MISMATCH: _bar_pair,
    }
)
"""What follows when the call of an early reader fails, before its prefill has ended."""
