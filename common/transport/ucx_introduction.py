"""How a reader and the UCX worker of an owner come to know each other, over a fresh TCP stream.

UCX pairs the endpoints of two workers by the order in which each side has made its own. So introductions to one owner
go one after the other, and one that has begun is brought to its end, also when nobody waits for it any more: the owner
would have made an endpoint, this side none, and from then on the end of one connection would hold up another's
transfers until UCX's keepalive runs out (20 s).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from common.core.ids import WorkerLife
from common.core.work import KvHandle
from common.errors import Reason, WireError
from common.transport.byte_stream import ByteStream
from common.transport.frames import FrameDecoder, FrameKind
from common.transport.messages import MalformedFrame, Refusal, UcxPeer
from common.transport.tcp_reader import connect
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime
from common.transport.ucx_seal import Side, is_sealed, sealed

LEFT_ALONE_S = 5.0
"""Longest wait for the answer to an introduction whose fetch is over."""

C = TypeVar("C")


class NoUcxPath(WireError):
    """UCX does not work at one of the ends, now or ever; nothing was written to any sink."""

    def __init__(self, problem: str) -> None:
        super().__init__(Reason.LAYOUT_MISMATCH, f"no UCX path to the KV owner: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquaintance:
    """What came of an introduction: the owner at the other end of `stream`, as it says of itself, and an endpoint.

    `peer.first_tag` is the one that this side has drawn.
    """

    stream: ByteStream
    peer: UcxPeer
    endpoint: UcxEndpoint

    async def abort(self) -> None:
        """Close both at once."""
        self.stream.close()
        await self.endpoint.abort([])


async def opened(
    handle: KvHandle,
    runtime: UcxRuntime,
    timeout_s: float,
    begin: Callable[[Acquaintance], Awaitable[C]],
    *,
    nonce: bytes = b"",
) -> C:
    """What `begin` makes of an acquaintance with the owner that `handle` names; with a `nonce` that says, if it can,
    how to read its memory.

    Raises `NoUcxPath` when the owner says that it has no UCX, `WireError` STALE_INCARNATION that it lives another life,
    and PEER_LOST when all this takes longer than `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            known = await _met(handle, runtime, timeout_s, nonce)
            try:
                return await begin(known)
            except BaseException:
                await known.abort()
                raise
    except TimeoutError:
        raise WireError(Reason.PEER_LOST, f"the KV peer did not answer within {timeout_s} s") from None


async def _met(handle: KvHandle, runtime: UcxRuntime, timeout_s: float, nonce: bytes) -> Acquaintance:
    stream = await connect(handle.address, timeout_s)
    turn = runtime.turn_of(handle.owner)
    try:
        await turn.acquire()
    except BaseException:
        stream.close()
        raise
    introducing = asyncio.create_task(_introduce(stream, runtime, handle.owner, nonce))

    def settle(ended: asyncio.Task[Acquaintance]) -> None:
        """Here and not inside the task: one that is cancelled before its first step never runs."""
        turn.release()
        if ended.cancelled() or ended.exception() is not None:
            stream.close()

    introducing.add_done_callback(settle)
    try:
        return await asyncio.shield(introducing)
    except asyncio.CancelledError:
        runtime.leave(introducing, asyncio.create_task(_abort_when_met(introducing)))
        raise


async def _introduce(stream: ByteStream, runtime: UcxRuntime, owner: WorkerLife, nonce: bytes) -> Acquaintance:
    first_tag = secrets.randbits(64)
    own = sealed(runtime.introduction(first_tag, nonce=nonce), owner, Side.READER)
    await stream.say(own, stall_timeout_s=None)
    peer = await stream.receive(FrameDecoder(frozenset({FrameKind.PEER, FrameKind.REFUSAL})))
    if isinstance(peer, Refusal):
        raise peer.error if peer.error.reason is Reason.STALE_INCARNATION else NoUcxPath(peer.error.message)
    if not isinstance(peer, UcxPeer):
        raise MalformedFrame("a UCX connection begins with an introduction")
    # First: what else another version says may mean something else.
    runtime.check_peer(peer)
    if peer.first_tag != first_tag or not is_sealed(peer, owner, Side.OWNER):
        raise MalformedFrame("a UCX introduction that is not this owner's answer")
    return Acquaintance(stream=stream, peer=peer, endpoint=await runtime.connect(peer.worker_address))


async def _abort_when_met(introducing: asyncio.Task[Acquaintance]) -> None:
    """Bring to its end what nobody waits for any more."""
    await asyncio.wait([introducing], timeout=LEFT_ALONE_S)
    introducing.cancel()
    await asyncio.wait([introducing])
    if not introducing.cancelled() and introducing.exception() is None:
        await introducing.result().abort()
