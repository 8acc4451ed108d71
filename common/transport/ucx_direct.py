"""The reader's side of a UCX connection within one machine: take the bytes out of the owner's memory by UCX's reads.

It is the direct protocol (`direct_reader`), with UCX in the place of the system call.
"""

from __future__ import annotations

from common.core.work import KvHandle
from common.transport.base import KvSink
from common.transport.direct_reader import DirectConnection, NoDirectPath, expect_proof
from common.transport.fetches import Received
from common.transport.frames import FrameDecoder, FrameKind
from common.transport.memory_proof import Challenge
from common.transport.messages import ReadRequest, TakesMemory
from common.transport.ucx_introduction import Acquaintance, opened
from common.transport.ucx_runtime import UcxEndpoint, UcxRuntime


class UcxDirectConnection:
    """`ReaderConnection` that takes payloads itself, over a TCP stream and a UCX endpoint."""

    def __init__(self, direct: DirectConnection, endpoint: UcxEndpoint) -> None:
        self._direct = direct
        self._endpoint = endpoint

    @classmethod
    async def open(cls, handle: KvHandle, runtime: UcxRuntime, timeout_s: float) -> UcxDirectConnection:
        """Connect and introduce each other.

        Raises `NoDirectPath` when UCX cannot read the memory of the owner that `handle` names, `WireError` PEER_LOST
        when that takes longer than `timeout_s`.
        """
        challenge = Challenge(handle.owner)

        async def begin(known: Acquaintance) -> UcxDirectConnection:
            if (memory := known.endpoint.peer_memory(known.peer.memory_key)) is None:
                raise NoDirectPath("UCX sends messages there")
            # UCX takes the process number, too, from what the owner has said of itself.
            expect_proof(challenge, known.peer.proof_address, memory.read)
            # It leaves with the first request.
            await known.stream.say(TakesMemory(), stall_timeout_s=None, more=True)
            decoder = FrameDecoder(frozenset({FrameKind.ACCEPT, FrameKind.LENT, FrameKind.TRAILER, FrameKind.REFUSAL}))
            return cls(DirectConnection(known.stream, decoder, memory.read), known.endpoint)

        return await opened(handle, runtime, timeout_s, begin, nonce=challenge.nonce)

    @property
    def delivering(self) -> bool:
        """See `ReaderConnection.delivering`."""
        return self._direct.delivering

    @property
    def reusable(self) -> bool:
        """See `ReaderConnection.reusable`."""
        return self._direct.reusable and self._endpoint.alive

    async def read(self, sink: KvSink, request: ReadRequest) -> Received:
        """See `ReaderConnection.read`."""
        return await self._direct.read(sink, request)

    async def abort(self) -> None:
        """See `ReaderConnection.abort`."""
        await self._direct.abort()
        await self._endpoint.abort([])
